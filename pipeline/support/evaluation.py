"""One evaluation of an encoder: pretrained, foreign, or a baseline's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cl.config import Params
from cl.evaluations import EvaluatedEncoder, EvaluationContext
from cl.runtime.metric_info import measurements
from cl.runtime.registry import module_of
from cl.training.checkpoints import Checkpoints
from pipeline.support import command, locations


def evaluate(
    name: str,
    encoder: EvaluatedEncoder,
    params: Params,
    results: command.Results,
    checkpoints: Callable[[str], Checkpoints],
) -> dict[str, Any]:
    """Add the numbers of the evaluation `name` over its seeds to the results; returns reduced parameters."""
    given = params.evaluations[name].model_dump()
    progress = command.progress(name, params.titles.get(results.baseline or ""))
    params, train, val = locations.data(params)
    config: Any = params.evaluations[name]
    config.check(train, val)
    here = command.find_machine(params)
    results.notes["precision"] = here.precision  # what `auto` became
    for _, networks in encoder.passes():
        here.place(networks).eval()
    module = module_of("evaluations", config.kind)

    transform = locations.transform(params.dataset, train)
    results.notes |= transform.shown

    def measure(seed: int, folder: Path) -> command.Numbers:
        context = EvaluationContext(
            encoder=encoder,
            train=train,
            val=val,
            transform=transform,
            seed=seed,
            machine=here,
            progress=progress,
            out=folder,
            checkpoints=lambda part: checkpoints(f"{part}-{seed}"),
        )
        return module.evaluate(config, context)

    runs = results.over_seeds(name, measure, getattr(config, "seeds", None) or [params.seed])
    measured = measurements("evaluate", name, runs, config.numbers())
    results.add(name, module.__doc__.partition("\n")[0], measured, progress)
    return {key: value for key, value in config.model_dump().items() if value != given[key]}
