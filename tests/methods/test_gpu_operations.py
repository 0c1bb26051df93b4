"""How many operations and exchanges a GPU is asked for in a training step of a ResNet-50."""

from collections import Counter

import pytest
import torch

from benchmarks.parameters import parameters
from cl.networks import _native_batch_norm
from cl.objective.batch import Batch
from cl.runtime.machine import Machine
from cl.training import optim
from pipeline.pretrain import build
from tests.support.batch_norm_kernels import use_kernels
from tests.support.counting import GPU, Counting, pretended_ranks

IMAGES, SIZE = 32, 64  # per rank, in two views
RESNET50 = ("backbone=resnet50", "views=mocov2", "loss=infonce")
SIMCLR = (*RESNET50, "method=simclr_imagenet", "bn_group=global")
MOCO = (*RESNET50, "method=moco_v2_imagenet", "bn_group=8")
COLLECTIVES = ("allreduce_", "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "broadcast_")


@pytest.fixture(autouse=True)
def native(monkeypatch) -> None:
    """Kernels that exist only on a GPU have been verified."""
    for path in _native_batch_norm.PATHS.values():
        monkeypatch.setattr(path, "devices", set())
    use_kernels(GPU)


def operations(overrides: tuple[str, ...], ranks: int = 1) -> Counter[str]:
    """Of the second step; the first counts negatives and begins the optimizer's state."""
    params = parameters(*overrides, f"optim.batch_size={IMAGES * ranks}")
    task = build(params, Machine(GPU, 0, "fp32"), IMAGES * ranks).train()
    optimizer = optim.build(params.optim, [optim.Part(task)])
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = False, True
    images = torch.empty(IMAGES, 3, SIZE, SIZE, device=GPU).contiguous(memory_format=torch.channels_last)
    positions = torch.arange(IMAGES, device=GPU)
    for step in range(2):
        with Counting() as counting:
            task.begin_step(step, 0.0)
            task(Batch([images, images], positions, positions)).backward()
            optim.clip_gradients(optimizer, params.optim)
            optimizer.step()
            optimizer.zero_grad()
            task.after_step(0.0)
    return counting.operations


@pytest.mark.parametrize(("overrides", "largest"), [(SIMCLR, 709), (MOCO, 2097)], ids=["simclr", "moco_v2"])
def test_operations_of_a_step(overrides, largest) -> None:
    assert sum(operations(overrides).values()) <= largest


def test_a_batch_norm_over_ranks_exchanges_once_forward_and_once_backward() -> None:
    """Of 55 batch norms. The rest are the embeddings, with their gradients, and the running statistics."""
    with pretended_ranks(2):
        found = operations(SIMCLR, 2)
    assert sum(found.values()) <= 1268
    assert sum(found[name] for name in COLLECTIVES) == 2 * 55 + 3


def test_shuffled_images_and_their_keys_are_sent_once_each() -> None:
    """The other exchanges are the keys for the queue and the running statistics."""
    with pretended_ranks(2):
        found = operations(MOCO, 2)
    assert sum(found.values()) <= 2107
    assert {name: found[name] for name in COLLECTIVES if found[name]} == {
        "alltoall_base_": 2,
        "_allgather_base_": 1,
        "allreduce_": 1,
    }
