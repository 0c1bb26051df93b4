"""What the libraries of loggers have stored, read back from a folder by a function of their name; not W&B."""

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
    failed: bool | None = None  # None: not stored


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


def mlflow(folder: Path) -> Logged:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cl")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    logged = Logged(run.data.params, failed=run.info.status == "FAILED")
    assert logged.failed or run.info.status == "FINISHED"
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        logged.columns[name] = [(metric.step, metric.value) for metric in history]
    return logged


def dvclive(folder: Path) -> Logged:
    from cl.config import read

    (run,) = (path for path in folder.iterdir() if path.is_dir())
    assert (folder / ".gitignore").read_text() == "*\n"
    assert not (run / "dvc.yaml").exists()
    logged = Logged(read(run / "params.yaml"))
    for path in run.glob("plots/metrics/*/*.tsv"):
        _, *rows = path.read_text().splitlines()
        cells = [[float(cell) for cell in row.split("\t")] for row in rows]
        pairs = [(row[0], row[-1]) for row in cells]  # the same cell in the table of `step`
        logged.columns[f"{path.parent.name}/{path.stem}"] = pairs
    return logged
