"""One evaluation of an encoder: pretrained, foreign, or a baseline's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cl.config import Params
from cl.evaluations import Context, Encoder
from cl.runtime.metric_info import Measurement, measurements
from cl.runtime.registry import module_of
from cl.training.checkpoints import Checkpoints
from pipeline.support import command, locations


def evaluate(
    name: str,
    encoder: Encoder,
    params: Params,
    *,
    out: Path,
    checkpoints: Callable[[str], Checkpoints],
    baseline: str | None = None,
) -> tuple[str, list[Measurement], dict[str, Any]]:
    """The description of the evaluation `name`, its numbers over its seeds, and its reduced parameters."""
    given = params.evaluations[name].model_dump()
    progress = command.progress(name, baseline)
    params, train, val = locations.data(params, progress.say, f"evaluations.{name}.")
    config: Any = params.evaluations[name]
    config.check(train, val)
    here = command.find_machine(params)
    for module in encoder.modules:
        here.place(module).eval()
    module = module_of("evaluations", config.kind)

    def measure(seed: int, folder: Path) -> dict[str, dict[str, float]]:
        context = Context(
            encoder=encoder,
            train=train,
            val=val,
            transform=locations.transform(params.dataset, train.manifest.levels),
            seed=seed,
            machine=here,
            progress=progress,
            out=folder,
            checkpoints=lambda part: checkpoints(f"{part}-{seed}"),
        )
        return module.evaluate(config, context)

    runs = command.repeated(measure, getattr(config, "seeds", None), params.seed, out)
    measured = measurements("evaluate", name, runs, config.numbers())
    command.say(progress, measured)
    reduced = {key: value for key, value in config.model_dump().items() if value != given[key]}
    return module.__doc__.partition("\n")[0], measured, reduced
