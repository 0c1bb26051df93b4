"""One evaluation of an encoder: of the pretrained one, a foreign one, or a baseline."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cl.config import Params
from cl.evaluations import Context, Encoder, numbers_of
from cl.runtime import machine
from cl.runtime.metric_info import explanation
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
) -> tuple[dict[str, float], dict[str, Any]]:
    """The metrics of the evaluation NAME, as `<name>_<metric>`, over its seeds, and what they mean."""
    config: Any = params.evaluations[name]
    train, val = (locations.reader(split, params.dataset) for split in ("train", "val"))
    config.check(train, val)
    progress = command.progress(name)
    here = machine.find(params.precision, deterministic=params.deterministic)
    for module in encoder.modules:
        here.place(module).eval()
    module = module_of("evaluations", config.kind)

    def measure(seed: int, folder: Path) -> dict[str, float]:
        context = Context(
            encoder=encoder,
            train=train,
            val=val,
            source=params.dataset,
            seed=seed,
            machine=here,
            progress=progress,
            out=folder,
            checkpoints=lambda part: checkpoints(f"{part}-{seed}"),
        )
        return module.evaluate(config, context)

    metrics = command.repeated(measure, getattr(config, "seeds", None), params.seed, out)
    progress.say(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    explained = explanation(module.__doc__, numbers_of(config, metrics, train, val))
    return {f"{name}_{key}": value for key, value in metrics.items()}, explained
