"""The shortest real run: CIFAR-10 by recipe=fast/cifar10, as a user starts it."""

import json
import os
from pathlib import Path

from benchmarks.gpu.session import Session
from benchmarks.workplace import copy_of_project
from pipeline.support.composition import CONF, write

RECIPE = "fast/cifar10"


def cifar10(session: Session) -> None:
    """The whole of `recipe=fast/cifar10`, in a copy of the project: seconds, and kNN top-1."""
    if not (CONF / "recipe" / f"{RECIPE}.yaml").exists():
        session.report(RECIPE, note="skipped: this version has no such recipe")
        return
    if session.tiny:
        session.report(RECIPE, note="skipped: too long without a GPU")
        return
    os.environ["CL_RAW"] = str(Path(os.environ.get("CL_RAW") or "data/raw").absolute())
    with copy_of_project() as place:
        (place.folder / "data").unlink(missing_ok=True)  # a link to the project's
        write(place.folder / "params.yaml", [f"recipe={RECIPE}"])
        try:
            seconds = {"prepare": place.run("prepare").seconds}
        except ValueError as error:
            session.report(RECIPE, note=f"skipped: {error}")
            return
        for stage in (["weights"], ["pretrain"], ["evaluate", "knn_200"]):
            seconds[" ".join(stage)] = place.run(*stage).seconds
        knn = json.loads((place.folder / "results/evaluate/knn_200.json").read_text())["knn_200_top1"]
        session.report(RECIPE, knn_top1=knn, **{f"{stage}_seconds": s for stage, s in seconds.items()})
