"""The number of processes, and of microbatches a batch is encoded in, changes no result.

Every method with every loss takes five steps as one process, and the same steps as two and four that share the batch.
"""

import io
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn

from cl.config import check, module_of, read
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.detection import data as detection
from cl.detection import transfer
from cl.detection.engines.torchvision import Detector
from cl.evaluations import plan_of
from cl.methods import Setup
from cl.networks import backbones
from cl.networks.batch_norm import GroupBatchNorm, update_running_stats
from cl.pretraining.task import PretrainingTask
from cl.runtime import distributed
from cl.runtime.distributed import gather, global_rows, local_part, mean_over_ranks
from cl.runtime.memory import growth
from cl.runtime.tensor_files import load_tensors
from cl.training.checkpoints import Checkpoints
from cl.training.loop import replicated
from tests.detection.test_transfer import RESNET18, small
from tests.methods.test_methods import (
    CASES,
    HEAD,
    HERE,
    LOSSES,
    SETTINGS,
    WHOLE,
    build,
    gives_negatives,
    inputs_of,
)
from tests.support.project import ROOT, TINY, compose
from tests.support.tiny import TinyBackbone, evaluated

IMAGES, STEPS = 24, 5
WEIGHTS = ("weight", "bias")
# Images of a group: all, 8, 2. Of two processes with 12 images each, a group of 8 lies on one or on both.
GROUPS = (1, 3, 12)
# float32: one activation that rounding turns from below zero to above must not be amplified by the steps after it.
SINGLE: dict[str, Any] = {"groups": 1, "dtype": torch.float32, "lr": 0.001}
LOSSES_OF = {
    kind: [
        name
        for name in LOSSES
        if module_of("losses", name).Config.needs_negatives == gives_negatives(build(kind))
    ]
    for kind in {case[0] for case in CASES}
}
# Options and patches take one loss each, in turns.
CELLS = [
    (*case, loss)
    for number, case in enumerate(CASES)
    for loss in (
        LOSSES_OF[case[0]]
        if case[1:] == ({}, WHOLE)
        else [LOSSES_OF[case[0]][number % len(LOSSES_OF[case[0]])]]
    )
]


# One of each method, whole and with patches.
IN_PIECES = [
    number
    for number, cell in enumerate(CELLS)
    if (cell[1] == {} and cell[3] == LOSSES_OF[cell[0]][0]) or cell[2] != WHOLE
]


def name(number: int) -> str:
    kind, option, cut, loss = CELLS[number]
    return " ".join(
        [kind, cut.kind, *(key if key == "ema" else f"{key}={option[key]}" for key in option), loss]
    )


def trajectory(
    number: int,
    *,
    microbatches: int = 1,
    groups: int | None = None,
    dtype: torch.dtype = torch.float64,
    lr: float = 0.05,
) -> dict[str, Tensor]:
    """The state after the steps, and the losses, of this process's part of the batches."""
    kind, option, cut, loss = CELLS[number]
    method = build(
        kind, cut=cut, bn_groups=groups or GROUPS[number % 3], microbatches=microbatches, **option
    ).to(dtype)
    module = module_of("losses", loss)
    task = PretrainingTask(method, module, module.Config(kind=loss, **LOSSES[loss]), 2.0, HERE)
    model = replicated(task)
    optimizer = torch.optim.SGD([p for p in task.parameters() if p.requires_grad], lr, momentum=0.9)
    losses = []
    for step in range(STEPS):
        task.begin_step(step, step / STEPS)
        value = model(
            [local_part(view).to(dtype) for view in inputs_of(option, IMAGES, step)], torch.zeros(0)
        )
        value.backward()
        nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        task.after_step((step + 1) / STEPS)
        losses.append(mean_over_ranks(value.detach()))
    state = {**task.state_dict(), "losses": torch.stack(losses)}
    everything = torch.cat([value.double().flatten() for value in state.values()])
    assert all(torch.equal(other, everything) for other in gather(everything[None])), "processes have parted"
    return state


def parts() -> dict[str, Tensor]:
    """Each building block alone, with its gradient, on this process's rows."""
    x = torch.arange(48, dtype=torch.float64).sin().view(IMAGES, 2)
    mine = local_part(x).clone().requires_grad_()
    gather(mine).pow(3).sum().backward()
    found = {
        "gather": gather(mine.detach()),
        "rows": gather(global_rows(len(mine))),
        "gather gradient": gather(mine.grad),
    }
    mine.grad = None
    mean_over_ranks(mine.mean(0)).pow(3).sum().backward()
    found |= {"mean": mean_over_ranks(mine.detach().mean(0)), "mean gradient": gather(mine.grad)}
    for groups in GROUPS:
        for affine in (True, False):
            torch.manual_seed(0)
            plain = nn.BatchNorm2d(2, affine=affine).double()
            norm = GroupBatchNorm(plain, groups)
            if affine:
                nn.init.uniform_(norm.weight), nn.init.uniform_(norm.bias)
            images = local_part(torch.randn(IMAGES, 2, 3, 3, dtype=torch.float64)).requires_grad_()
            y = norm(images)
            (y.pow(3) * local_part(torch.arange(IMAGES)).view(-1, 1, 1, 1)).mean().backward()
            update_running_stats(norm)
            name = f"batch norm of {groups}, affine={affine}"
            found |= {f"{name}: y": gather(y.detach()), f"{name}: gradient": gather(images.grad)}
            found |= {f"{name}: {key}": value for key, value in norm.state_dict().items()}
            if affine:
                found |= {
                    f"{name}: {key}'": mean_over_ranks(value.grad) for key, value in norm.named_parameters()
                }
    return found | unequal()


def unequal() -> dict[str, Tensor]:
    """Batch norm of one group of which the ranks hold different numbers of rows, as of a detector's regions."""
    edges = [
        IMAGES * r * (r + 1) // (distributed.ranks() * (distributed.ranks() + 1))
        for r in range(distributed.ranks() + 1)
    ]
    mine = slice(*edges[distributed.rank() : distributed.rank() + 2])
    torch.manual_seed(0)
    norm = GroupBatchNorm(nn.BatchNorm2d(2).double(), 1)
    everything = torch.randn(IMAGES, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    y = norm(everything[mine])
    (y.pow(3) * torch.arange(IMAGES)[mine].view(-1, 1, 1, 1)).sum().backward()
    update_running_stats(norm)
    whole = torch.zeros_like(everything)
    whole[mine] = y.detach()
    shared = {
        "y": whole,
        "gradient'": everything.grad,
        **{f"{key}'": value.grad for key, value in norm.named_parameters()},
    }
    found = {f"unequal: {key}": mean_over_ranks(value) * distributed.ranks() for key, value in shared.items()}
    return found | {f"unequal: {key}": value for key, value in norm.state_dict().items()}


def to_transfer(folder: Path) -> dict[str, Any]:
    """What a detector is built from."""
    params = check(read(folder / "params.yaml"))
    all_of_them = {
        "rpn_rois": 512,
        "rois": 512,
        "train_proposals": (50, 20),
    }  # drawn by each process for itself otherwise
    config = small(
        params, "voc_c4", iterations=3, batch_size=4, reference_batch=4, base_lr=0.001, **all_of_them
    )
    torch.manual_seed(0)
    backbone = backbones.build(RESNET18)
    torch.manual_seed(0)
    dataset = detection.read(config, folder / "scenes")
    return {"config": config, "backbone": backbone, "dataset": dataset, "source": params.dataset}


def transferred(folder: Path, out: Path) -> dict[str, Tensor]:
    """Metrics and weights of a detector after three steps."""
    metrics = transfer.run(
        **to_transfer(folder),
        seed=0,
        machine=HERE,
        progress=Progress("test", Console(file=io.StringIO())),
        out=out,
        checkpoints=Checkpoints(out / "transfer"),
    )
    if distributed.rank() == 0:
        assert (out / "detections.png").exists()
    found = {key: torch.tensor(value) for key, value in metrics.items()}
    state = load_tensors(folder / str(distributed.ranks()) / "0" / "transfer" / "step-000000003.safetensors")[
        0
    ]
    return found | {key: value.double() for key, value in state.items() if key.startswith("model.")}


def evaluations(folder: Path, out: Path) -> dict[str, Tensor]:
    """Metrics and trained weights of evaluations by the tiny encoder: the ranks share a batch of 24, but not one of 18."""
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
    for entry, batch in (("linear", 24), ("semi_10", 24), ("semi_10", 18), ("knn", 0)):
        config = params.evaluations[entry]
        if batch:
            optim = config.optim.model_copy(update={"batch_size": batch, "epochs": 4, "base_lr": 0.01})
            config = config.model_copy(
                update={"optim": optim, "fraction": 0.5} if entry == "semi_10" else {"optim": optim}
            )
        metrics = module_of("evaluations", config.kind).evaluate(config, context)
        found |= {f"{entry} of {batch}: {key}": torch.tensor(value) for key, value in metrics.items()}
    for file in sorted(out.glob("checkpoints/*/*.safetensors")):
        found |= {f"{file.parent.name}: {key}": value for key, value in load_tensors(file)[0].items()}
    return found


def work(folder: Path, rank: int) -> None:
    """What each of four processes does, and then the first two by themselves."""
    torch.set_num_threads(1)
    for ranks in (4, 2):
        if rank >= ranks:
            return
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store of {ranks}", rank=rank, world_size=ranks
        )
        results = {"parts": parts(), **{name(number): trajectory(number) for number in range(len(CELLS))}}
        if ranks == 2:
            results |= {f"{name(number)} in float32": trajectory(number, **SINGLE) for number in IN_PIECES}
            results |= {
                f"{name(number)} in microbatches": trajectory(number, microbatches=3, groups=12)
                for number in IN_PIECES
            }
        results["evaluations"] = evaluations(folder, folder / str(ranks) / str(rank))
        if ranks == 2:
            results["transfer"] = transferred(folder, folder / str(ranks) / str(rank))
        if rank == 0:
            torch.save(results, folder / f"{ranks}.pt")
        dist.barrier()
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shard_folder, drawn) -> Path:
    """What the processes share: parameters and data."""
    folder = tmp_path_factory.mktemp("ranks")
    compose(folder, *TINY)
    (folder / "shards").symlink_to(shard_folder)
    (folder / "scenes").symlink_to(drawn)
    for ranks in (1, 2, 4):
        for rank in range(ranks):
            (folder / str(ranks) / str(rank)).mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def found(folder) -> dict[int, dict[str, dict[str, Tensor]]]:
    """What two and four processes found."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([sys.executable, __file__, folder, str(rank)], env=environment) for rank in range(4)
    ]
    assert [process.wait(timeout=500) for process in started] == [0] * 4
    return {ranks: torch.load(folder / f"{ranks}.pt") for ranks in (2, 4)}


single = cache(trajectory)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    """Each tensor to a fraction of the length of all weights: some, like biases, are still near zero."""
    assert found.keys() == expected.keys()
    length = torch.cat([value.flatten() for key, value in expected.items() if key.endswith(WEIGHTS)]).norm()
    for key, value in expected.items():
        difference = (found[key] - value).double().norm()
        assert difference <= tolerance * length, f"{key}: {difference / length:.1e}"


@pytest.mark.parametrize("ranks", [2, 4])
def test_building_blocks(found, ranks) -> None:
    """Gathered rows, means and batch norm, forward and backward."""
    several, one = found[ranks]["parts"], parts()
    for key in one:
        # A rank's loss is its own: the gathered sum counts once a rank, and a rank's mean W times that of all.
        factor = ranks if key.endswith((": gradient", "mean gradient", "gather gradient")) else 1
        torch.testing.assert_close(
            several[key], one[key] * factor, rtol=1e-11, atol=1e-13, msg=lambda m, k=key: f"{k}: {m}"
        )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("number", range(len(CELLS)), ids=name)
def test_several_processes_make_the_steps_of_one(found, ranks, number) -> None:
    assert_equal(found[ranks][name(number)], single(number))


@pytest.mark.parametrize("number", range(len(CELLS)), ids=name)
def test_pieces_make_the_steps_of_the_whole(number) -> None:
    """Gradients, batch statistics, queue: all of it, where groups of batch norm fit in a piece."""
    assert_equal(trajectory(number, microbatches=3, groups=12), single(number, groups=12))


@pytest.mark.parametrize("number", IN_PIECES, ids=name)
def test_two_processes_in_float32(found, number) -> None:
    """The weights; queues and losses of five steps carry ten times their rounding."""
    states = found[2][f"{name(number)} in float32"], single(number, **SINGLE)
    several, one = ({k: v for k, v in state.items() if k.endswith(WEIGHTS)} for state in states)
    assert_equal(several, one, 1e-6)


@pytest.mark.parametrize("number", IN_PIECES, ids=name)
def test_pieces_on_two_processes(found, number) -> None:
    assert_equal(found[2][f"{name(number)} in microbatches"], single(number, groups=12))


def test_evaluations_on_several_processes(found, folder) -> None:
    one = evaluations(folder, folder / "1/0")
    assert sum("backbone" in key for key in one) == 18
    assert sum("heads" in key for key in one) == 10
    for several in found.values():
        assert several["evaluations"].keys() == one.keys()
        for key, value in several["evaluations"].items():
            torch.testing.assert_close(
                value, one[key], rtol=1e-4, atol=2e-5, msg=lambda m, k=key: f"{k}: {m}"
            )


def test_a_detector_on_two_processes(found, folder) -> None:
    """With all regions in the losses, which each process divides by its own number of them: hence the tolerance.

    Measured: 0.15; 1.4 where batch norm takes its statistics from a process alone.
    """
    one, two = transferred(folder, folder / "1/0"), found[2]["transfer"]
    start = {
        f"model.detector.{key}": value.double()
        for key, value in Detector(**to_transfer(folder)).state_dict().items()
    }
    assert one.keys() == two.keys()
    names = [key for key in start if key.endswith(WEIGHTS)]
    moved = torch.cat([(one[key] - start[key]).flatten() for key in names]).norm()
    parted = torch.cat([(one[key] - two[key]).flatten() for key in names]).norm()
    assert 0 < parted < 0.3 * moved
    for key in one:
        if "backbone.bn1.running" in key:  # of the images alone, which are the same
            torch.testing.assert_close(one[key], two[key], rtol=1e-3, atol=1e-3)


def test_pieces_hold_the_activations_of_one_at_a_time() -> None:
    """ResNet-18, 32 images of 32 px: in eight microbatches the step grows the process by less than half of what it does in one."""

    def taken(microbatches: int) -> int:
        torch.manual_seed(0)
        kind = {"kind": "resnet18", "width": 1, "stem": "small", "zero_init_residual": False}
        backbone = backbones.build(backbones.Config(**kind))
        config = module_of("methods", "simclr").Config(
            kind="simclr", projector=HEAD, scale=1.0, **SETTINGS["simclr"]
        )
        method = module_of("methods", "simclr").Method(
            config, Setup(backbone, 0.1, WHOLE, 8, 0, microbatches)
        )
        module = module_of("losses", "dcl")
        task = PretrainingTask(method, module, module.Config(kind="dcl"), 1.0, HERE)
        images = [torch.randn(32, 3, 32, 32) for _ in range(2)]
        task([view[:8] for view in images], torch.zeros(0)).backward()  # the gradients' memory
        return growth(lambda: task(images, torch.zeros(0)).backward())

    assert taken(8) < taken(1) / 2


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
