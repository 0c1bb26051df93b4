"""What TensorBoard has stored, read back from a folder by a function of its name."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Logged:
    """The parameters of the only run in a folder, and the (step, value) pairs of its columns by full name."""

    parameters: Any
    columns: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))


def tensorboard(folder: Path) -> Logged:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    (run,) = folder.iterdir()
    events = EventAccumulator(str(run)).Reload()
    (text,) = events.Tensors("parameters/text_summary")
    logged = Logged(json.loads(make_ndarray(text.tensor_proto)[0].decode().strip("`\n")))
    for tag in events.Tags()["scalars"]:
        logged.columns[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
    return logged
