"""Whole runs in this process, so short that starting DVC's stages would take longer."""

import io
import tempfile
import time
from functools import partial
from pathlib import Path

from rich.console import Console

from cl import analyses, evaluations
from cl.config import Params, for_few_images
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.evaluations import EvaluatedEncoder
from cl.runtime import machine
from cl.runtime.metric_info import BACKBONE, Measurement, flat, measurements
from cl.runtime.registry import module_of
from cl.shards import writing
from cl.shards.survey import Team
from cl.training.checkpoints import Checkpoints
from cl.training.loop import train
from cl.training.start import Start
from pipeline.support import locations, pretraining


def silent() -> Progress:
    """Shows nothing."""
    return Progress("", Console(file=io.StringIO()))


def shards(params: Params, folder: Path, raw: Path | None = None) -> list[Reader]:
    """The training and the validation images, prepared in `folder` from `raw`, or from CL_RAW."""
    splits = module_of("sources", params.dataset.kind).splits(params.dataset, raw or locations.raw())
    writing.write(splits, params.dataset.kind, params.dataset, folder, Team(2))
    return [Reader(folder, split) for split in ("train", "val")]


def no_weights(params: Params) -> Start:
    """What a run in this process starts from.

    Raises:
        ValueError: the parameters name weights, which only DVC's stages load.
    """
    if name := next((name for name in ("init", "start_from") if getattr(params, name)), None):
        raise ValueError(f"{name} is for DVC's stages; here, remove it")
    return Start()


def run(params: Params, readers: list[Reader]) -> tuple[dict[str, float], float]:
    """Pretrain, evaluate and analyze as DVC's stages do; not `transfer` and `baseline`.

    Returns:
        The numbers by their names in DVC, and the seconds that pretraining took.

    Raises:
        ValueError: the parameters do not fit the images, or only DVC's stages can do what they ask for.
    """
    start = no_weights(params)
    if params.teacher or any(getattr(each, "seeds", None) for each in params.evaluations.values()):
        raise ValueError("a teacher, and seeds of an evaluation, are for DVC's stages")
    params, _ = for_few_images(params, *readers)
    here = machine.find(params.precision, deterministic=params.deterministic)
    task, optimizer, data = pretraining.prepare(params, here, readers[0], start)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def each_epoch(epoch: int) -> dict[str, float]:
            pretraining.keep(params, task.method, epoch, folder)
            return {}

        batches = pretraining.cropped(params, data, here)
        began = time.monotonic()
        rows = train(task, batches, params.optim, optimizer, progress=silent(), each_epoch=each_epoch)
        seconds = time.monotonic() - began
        kept = locations.kept_methods(folder)
        kept.pop(rows[-1]["epoch"], None)
        backbone, projector = task.method.evaluated
        shared = {
            "train": readers[0],
            "val": readers[1],
            "transform": data.transform,
            "machine": here,
            "progress": silent(),
        }
        evaluated = partial(
            evaluations.EvaluationContext,
            encoder=EvaluatedEncoder(backbone, heads={"embedding": projector}),
            checkpoints=lambda part: Checkpoints(folder / part),
            **shared,
        )
        analyzed = analyses.AnalysisContext(
            method=task.method,
            backbone=backbone,
            views=list(params.views.values()),
            epochs=rows,
            kept=kept,
            seed=params.seed,
            out=folder,
            **shared,
        )
        numbers: list[Measurement] = []
        for name, config in params.evaluations.items():
            module = module_of("evaluations", config.kind)
            runs = [module.evaluate(config, evaluated(seed=params.seed, out=folder))]
            numbers += measurements("evaluate", name, runs, config.numbers())
        for name, config in params.analyses.items():
            module = module_of("analyses", config.kind)
            numbers += measurements(
                "analyze", name, [{BACKBONE: module.analyze(config, analyzed)}], config.numbers()
            )
    return flat(numbers), seconds
