"""CIFAR-10, as a user starts it: the whole of the shortest recipe, and epochs of DCL's Table 3."""

import csv
import json
import os
from pathlib import Path

from benchmarks.gpu.session import Session
from benchmarks.workplace import Workplace, copy_of_project
from pipeline.composition.compose import write

SHORTEST, TABLE_3, EPOCHS = "recipe=fast/cifar10", "recipe=dcl/table3_cifar10", 3


def cifar10(session: Session) -> None:
    """The whole of `recipe=fast/cifar10`, in a copy of the project: seconds, and kNN top-1.

    Then the last of three epochs of `recipe=dcl/table3_cifar10`, with crops by data workers and by the GPU.
    """
    if session.tiny:
        session.report(SHORTEST, note="skipped: too long without a GPU")
        return
    os.environ["CL_RAW"] = str(Path(os.environ.get("CL_RAW") or "data/raw").absolute())
    with copy_of_project() as place:
        (place.folder / "data").unlink(missing_ok=True)  # a link to the project's
        write(place.folder / "params.yaml", [SHORTEST])
        try:
            seconds = {"prepare": place.run("prepare").seconds}
        except ValueError as error:
            session.report(SHORTEST, note=f"skipped: {error}")
            return
        for stage in (["weights"], ["pretrain"], ["evaluate", "knn_200"]):
            seconds[" ".join(stage)] = place.run(*stage).seconds
        knn = json.loads((place.folder / "results/evaluate/knn_200.json").read_text())["knn_200_top1"]
        session.report(SHORTEST, knn_top1=knn, **{f"{stage}_seconds": s for stage, s in seconds.items()})
        by_workers, by_device = (_images_per_second(place, cropping) for cropping in ("workers", "device"))
        session.report(
            f"{TABLE_3}, precision=bf16",
            by_workers=by_workers,
            by_device=by_device,
            setting="optim.cropping=device",
            times_as_fast=by_device / by_workers,
        )


def _images_per_second(place: Workplace, cropping: str) -> float:
    """Of the last epoch; images count once."""
    short = [f"optim.epochs={EPOCHS}", "optim.warmup_epochs=1", "dataset.encode=raw"]
    choices = [TABLE_3, "precision=bf16", f"optim.cropping={cropping}", *short]
    write(place.folder / "params.yaml", choices)
    place.run("pretrain")
    with (place.folder / "results/pretrain/epochs.csv").open() as file:
        return float(list(csv.DictReader(file))[-1]["images_per_second"])
