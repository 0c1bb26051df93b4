"""What several processes compute together, for `tests/runtime/test_distributed.py`."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn

from cl.config import check, read
from cl.console.progress import Progress
from cl.data.order import plan_of
from cl.data.reader import Reader
from cl.detection import data as detection
from cl.detection import transfer
from cl.evaluations import EvaluatedEncoder
from cl.networks import backbones, passes
from cl.objective.batch import Batch
from cl.runtime import distributed
from cl.runtime.distributed import gather, global_rows, local_part, mean_over_ranks, permute
from cl.runtime.registry import module_of
from cl.runtime.tensor_files import load_tensors
from cl.training.checkpoints import Checkpoints
from cl.training.loop import ASK_SECONDS, StopSync, replicated
from pipeline.support.locations import transform
from tests.support import backbones as tiny
from tests.support.detection import FPN, RESNET18, small
from tests.support.methods import (
    CASES,
    HERE,
    USUAL,
    WHOLE,
    as_type,
    build,
    case_name,
    each_tensor,
    is_fast,
    loss_config,
    losses_for,
    takes_columns,
    task_of,
    training_batch,
    usual_losses,
    with_columns,
)
from tests.support.tiny import TinyBackbone, evaluated

IMAGES = 24
# Images of a group of batch norm: all, 8, 2. With 12 images on each of two processes, a group of 8 is on one
# or spans both.
GROUPS = (1, 3, 12)
STEPS = 2  # show all that a step depends on: weights, buffers of the optimizer, targets, queues and banks
WEIGHTS = ("weight", "bias")
# In float32, rounding that turns one activation positive must not be amplified by later steps.
SINGLE: dict[str, Any] = {"groups": 1, "dtype": torch.float32, "lr": 0.001}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "float32": SINGLE,
    "microbatches": {"microbatches": 3, "groups": 12},
    "compiled": {"compiled": True, "groups": 1},
}
# Every method with every loss; options with the usual one, patches with those that fit in rotation.
CELLS = [
    (case, loss)
    for number, case in enumerate(CASES)
    for loss in (
        losses_for(case[0])
        if case[1:] == ({}, WHOLE)
        else usual_losses(case[0])[:1]
        if case[2] == WHOLE
        else [losses_for(case[0])[number % len(losses_for(case[0]))]]
    )
]
MARKS = [() if case[2] != WHOLE or is_fast(case, loss) else pytest.mark.slow for case, loss in CELLS]
ALL = [pytest.param(number, marks=marks) for number, marks in enumerate(MARKS)]
COMPILED = [
    number
    for number, cell in enumerate(CELLS)
    if cell in USUAL and cell[0] in ((kind, {}, WHOLE) for kind in ("simclr", "moco_v3"))
]
# Every method with its usual losses, options and patches.
ONE_OF_EACH = [number for number, cell in enumerate(CELLS) if cell in USUAL or cell[0][2] != WHOLE]


def name(number: int) -> str:
    case, loss = CELLS[number]
    return f"{case_name(case)} {loss}"


def local(batch: Batch) -> Batch:
    """This rank's images of a batch."""
    return each_tensor(batch, local_part)


def trajectory(
    number: int,
    *,
    microbatches: int = 1,
    groups: int | None = None,
    dtype: torch.dtype = torch.float64,
    lr: float = 0.05,
    grouped: int = 1,
    steps: int = STEPS,
    compiled: bool = False,
) -> dict[str, Tensor]:
    """The state after the steps, and the losses, of this process's part of the batches.

    groups: of batch norm. grouped: the first step whose images have groups, a fifth each; images of one group
        are never negatives of each other. A method and a loss that take columns get these too.
    """
    (kind, option, cut), loss = CELLS[number]
    bn_groups = groups or GROUPS[number % 3]
    columns = takes_columns(kind, loss)
    parts = {"bn_groups": bn_groups, "microbatches": microbatches, "within": columns}
    method = build(kind, cut=cut, **parts, **option).to(dtype)
    for network in passes.encoders(method) if compiled else ():
        passes.compile_forward(network, "aot_eager")
    task = task_of(method, loss_config(loss))
    model = replicated(task)
    optimizer = torch.optim.SGD([p for p in task.parameters() if p.requires_grad], lr, momentum=0.9)
    losses = []
    for step in range(steps):
        count = 1 if kind == "cpc_v2" else 4  # whose views are grids by themselves
        batch = training_batch(kind, option, IMAGES, step, count)
        if step >= grouped:
            batch = replace(batch, groups=(torch.arange(IMAGES) * 7 + step) % 5 - 1)
            batch = with_columns(batch, step) if columns else batch
        task.begin_step(step, step / steps)
        if step == 0:
            task.begin_epoch(0)
        value = model(local(as_type(batch, dtype)))
        value.backward()
        nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        task.after_step((step + 1) / steps)
        losses.append(mean_over_ranks(value.detach()))
    state = {**task.state_dict(), "losses": torch.stack(losses)}
    everything = torch.cat([value.double().flatten() for value in state.values()])
    assert all(torch.equal(other, everything) for other in gather(everything[None])), (
        "processes have diverged"
    )
    return state


def to_transfer(folder: Path, kind: str) -> dict[str, Any]:
    """What a detector on a kind of backbone is built from: C4, or the simple pyramid on a transformer."""
    params = check(read(folder / "params.yaml"))
    # Of all regions, where each process would otherwise sample its own.
    all_regions = {"rpn_rois": 512, "rois": 512, "train_proposals": (50, 20)}
    changes = {"batch_size": 4, "reference_batch": 4, "base_lr": 0.001, **all_regions}
    config = small(params, "voc_c4", **changes, **(FPN if kind == "vit" else {}))
    torch.manual_seed(0)
    backbone = backbones.build(tiny.config("vit") if kind == "vit" else RESNET18)
    torch.manual_seed(0)
    dataset = detection.read(config, folder / "scenes")
    return {
        "config": config,
        "backbone": backbone,
        "dataset": dataset,
        "transform": transform(params.dataset),
    }


def transferred(folder: Path, out: Path, kind: str) -> dict[str, Tensor]:
    """Metrics and weights of a detector after two steps."""
    progress = Progress("test", Console(file=io.StringIO()))
    run = transfer.FineTuningRun(0, HERE, progress, out, Checkpoints(out / f"transfer {kind}"))
    metrics = transfer.fine_tune(**to_transfer(folder, kind), run=run)
    if distributed.rank() == 0:
        assert (out / "detections.png").exists()
    found = {key: torch.tensor(value) for key, value in metrics.items()}
    saved = folder / str(distributed.ranks()) / "0" / f"transfer {kind}" / "step-000000002.safetensors"
    state, _ = load_tensors(saved)
    return found | {key: value.double() for key, value in state.items() if key.startswith("model.")}


def building_blocks() -> dict[str, Tensor]:
    """Each building block alone, with its gradient, on this process's rows."""
    x = torch.arange(48, dtype=torch.float64).sin().view(IMAGES, 2)
    mine = local_part(x).clone().requires_grad_()
    gather(mine).pow(3).sum().backward()
    found = {
        "gather": gather(mine.detach()),
        "rows": gather(global_rows(len(mine))),
        "gather gradient": gather(mine.grad),
    }
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0))
    found["another order"] = gather(permute(mine.detach(), order))
    found["back"] = gather(permute(permute(mine.detach(), order), order.argsort()))
    mine.grad = None
    mean_over_ranks(mine.mean(0)).pow(3).sum().backward()
    found |= {"mean": mean_over_ranks(mine.detach().mean(0)), "mean gradient": gather(mine.grad)}
    return found


def requests() -> dict[str, Tensor]:
    """The steps, of twelve, at which each rank hears what the last one asks for from the third step on."""
    found = {}
    for name, seconds in (("fast steps", 0.0), ("slow steps", 2 * ASK_SECONDS)):
        asking, heard = StopSync(0, replace(HERE, read_every=4)), torch.zeros(12, dtype=torch.bool)
        for step in range(12):
            asking.since -= seconds * (step + 1 - asking.asked)
            signals = [15] if distributed.rank() == distributed.ranks() - 1 and step >= 2 else []
            heard[step] = asking.agree(step + 1, signals)[0]
        found[name] = gather(heard[None])
    return found


def evaluations(folder: Path, out: Path) -> dict[str, Tensor]:
    """Metrics and weights of evaluations: ranks share a batch of 24, but four cannot share one of 18."""
    params = check(read(folder / "params.yaml"))
    torch.manual_seed(0)
    backbone = TinyBackbone()
    assert (plan_of(120, 24, 0).share, plan_of(120, 18, 0).share) == {1: (24, 18), 2: (12, 9), 4: (6, 18)}[
        distributed.ranks()
    ]
    context = evaluated(
        *(Reader(folder / "shards", split) for split in ("train", "val")), params, backbone, out
    )
    found = {}
    maps = params.evaluations["linear"].model_copy(update={"maps": True})
    network = backbones.build(tiny.residual(width=0.125)).eval()
    entries = params.evaluations | {"maps": maps}
    for entry, batch in (("linear", 24), ("semi_10", 24), ("semi_10", 18), ("knn", 0), ("maps", 24)):
        config = entries[entry]
        if entry == "maps":
            context = replace(context, encoder=EvaluatedEncoder(network))
        if batch:
            optim = config.optim.model_copy(update={"batch_size": batch, "epochs": 4, "base_lr": 0.01})
            config = config.model_copy(
                update={"optim": optim, "fraction": 0.5} if entry == "semi_10" else {"optim": optim}
            )
        metrics = module_of("evaluations", config.kind).evaluate(config, context)
        found |= {
            f"{entry} of {batch}, {representation}: {key}": torch.tensor(value)
            for representation, numbers in metrics.items()
            for key, value in numbers.items()
        }
    for file in sorted(out.glob("checkpoints/*/*.safetensors")):
        found |= {f"{file.parent.name}: {key}": value for key, value in load_tensors(file)[0].items()}
    return found


def work(folder: Path, number: int) -> None:
    """What each of four processes does, and then the first two by themselves: what `wanted.json` names."""
    torch.set_num_threads(1)
    wanted = json.loads((folder / "wanted.json").read_text())
    for count in (4, 2):
        if number >= count:
            return
        store = f"file://{folder}/store of {count}"
        dist.init_process_group("gloo", init_method=store, rank=number, world_size=count)
        results = {job: run(job, folder) for job in wanted[str(count)]}
        if number == 0:
            torch.save(results, folder / f"{count}.pt")
        dist.barrier()
        dist.destroy_process_group()


def run(job: str, folder: Path) -> dict[str, Tensor]:
    """One job by its name: a part of this module's, or a trajectory, as "<way> <number of the cell>"."""
    way, _, number = job.partition(" ")
    if number:
        return trajectory(int(number), **WAYS[way])
    out = folder / str(distributed.ranks()) / str(distributed.rank())
    return {
        "parts": building_blocks,
        "requests": requests,
        "evaluations": lambda: evaluations(folder, out),
        "transfer_resnet": lambda: transferred(folder, out, "resnet"),
        "transfer_vit": lambda: transferred(folder, out, "vit"),
    }[job]()
