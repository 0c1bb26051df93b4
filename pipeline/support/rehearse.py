"""rehearse: a stage with its long loops cut short; what it would use in full goes to rehearsal.json.

`pipeline.plan` runs it in a copy of the project (`workplace`): it writes what the stage writes.
"""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.support import command, launch, locations

if TYPE_CHECKING:
    from cl.config import Params
    from cl.data.sets import TrainSet
    from cl.runtime.rehearsal import Rehearsal

REPORT = Path("rehearsal.json")


@click.command()
@click.argument("stage")
@click.argument("names", nargs=-1)
@command.entry_point
def main(stage: str, names: tuple[str, ...]) -> None:
    """Rehearse the STAGE, or one of the parts of pretraining: draw (its data alone), flops."""
    from cl.runtime.rehearsal import rehearsing

    with rehearsing() as rehearsal:
        began = rehearsal.now()
        if stage in PARTS:
            notes = PARTS[stage]()
        else:
            notes = {}
            importlib.import_module(f"pipeline.{stage}").main.main(names, standalone_mode=False)
        if command.is_main_process():
            used = {key: value - began[key] for key, value in rehearsal.now().items() if key in began}
            REPORT.write_text(json.dumps({**_report(rehearsal), "used": used, **notes}))


def _report(rehearsal: "Rehearsal") -> dict[str, Any]:
    import torch

    gpu = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else None
    loops = [{"rounds": loop.total, **loop.per_round} for loop in rehearsal.loops]
    return {"left_out": rehearsal.left_out, "loops": loops, "gpu_bytes": gpu}


@launch.on_all_devices
def _draw() -> dict[str, Any]:
    """Draw the batches of pretraining, without training on them; `workers`: whether data workers do it."""
    from cl.runtime import machine
    from cl.runtime.rehearsal import rounds
    from pipeline import pretrain

    params = command.params()
    here = machine.find(params.precision, deterministic=params.deterministic)
    by_workers = _data(params)
    data = pretrain.cropped(params, by_workers, here, lambda sentence: None)
    for _ in rounds(data.batches(0, data.plan.steps_per_epoch, here.workers), data.plan.steps_per_epoch):
        pass
    return {"workers": data is by_workers}


@launch.on_all_devices
def _count_flops() -> dict[str, Any]:
    """The floating-point operations of a training step, in convolutions and matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    from cl.runtime import machine
    from pipeline import pretrain

    params = command.params()
    here = machine.find(params.precision, deterministic=params.deterministic)
    data = _data(params)
    task = pretrain.build(params, here, data.plan.samples).train()
    batch = data.inputs(here.device)(data[0])
    with FlopCounterMode(display=False) as counter:
        task(batch).backward()
    return {"flops": counter.get_total_flops() * data.plan.ranks}


def _data(params: "Params") -> "TrainSet":
    from pipeline import pretrain

    return pretrain.train_set(params, locations.reader("train", params.dataset))


PARTS: dict[str, Callable[[], Any]] = {"draw": _draw, "flops": _count_flops}

if __name__ == "__main__":
    main()
