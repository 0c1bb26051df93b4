"""What the libraries of loggers have stored: for each, a function of its name reads it back from a folder."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, HEADER = 2**15, 7  # bytes in W&B's files, which have LevelDB's format


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


def wandb(folder: Path) -> Logged:
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    logged = Logged({})
    for content in _records(path.read_bytes()):
        record = Record.FromString(content)
        for item in record.run.config.update:
            if not item.key.startswith("_"):
                logged.parameters[item.key] = json.loads(item.value_json)
        row = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for name, value in row.items():
            if not name.startswith("_"):
                step = float(row[f"{name.split('/')[0]}/step"])
                logged.columns[name].append((step, float(value)))
        if record.WhichOneof("record_type") == "exit":
            logged.failed = record.exit.exit_code != 0
    return logged


def _records(content: bytes) -> Iterator[bytes]:
    record, place = b"", HEADER
    while place + HEADER <= len(content):
        if (left := BLOCK - place % BLOCK) < HEADER:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        record += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


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
