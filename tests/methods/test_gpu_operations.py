"""How often two GPUs exchange something in a training step."""

from collections import Counter

import pytest
import torch
from torch import nn

from benchmarks.parameters import parameters
from cl.networks import _sync_batch_norm
from cl.networks.batch_norm import GroupBatchNorm
from cl.objective.batch import Batch
from cl.roofline.ranks import pretended_ranks
from cl.runtime.machine import Machine
from pipeline.pretrain import build
from tests.support import batch_norm_kernels
from tests.support.counting import GPU, Counting

assert batch_norm_kernels.LIBRARIES
IMAGES, SIZE = 8, 32  # per rank, in two views
SIMCLR = ("method=simclr_imagenet", "bn_group=global")
MOCO = ("method=moco_v2_imagenet", "bn_group=4")
COLLECTIVES = ("allreduce_", "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "broadcast_")


def exchanges(*overrides: str, sizes: tuple[int, ...] = (SIZE, SIZE)) -> tuple[Counter[str], nn.Module]:
    """Those of the second step on views of these sizes, without the average of the gradients; the method."""
    with pretended_ranks(2):
        params = parameters(
            "backbone=resnet18", "views=mocov2", "loss=infonce", *overrides, f"optim.batch_size={2 * IMAGES}"
        )
        task = build(params, Machine(GPU, 0, "fp32"), 2 * IMAGES).train()
        layout = torch.channels_last
        views = [torch.empty(IMAGES, 3, s, s, device=GPU).contiguous(memory_format=layout) for s in sizes]
        positions = torch.arange(IMAGES, device=GPU)
        for step in range(2):  # the first counts negatives
            with Counting() as counting:
                task.begin_step(step, 0.0)
                task(Batch(views, positions, positions)).backward()
                task.after_step(0.0)
    found = Counter({name: counting.operations[name] for name in COLLECTIVES if counting.operations[name]})
    return found, task.method


def norms(module: nn.Module) -> int:
    return sum(isinstance(child, GroupBatchNorm) for child in module.modules())


def test_a_batch_norm_over_ranks_exchanges_once_forward_and_once_backward(monkeypatch) -> None:
    """The rest are the embeddings, with their gradients, and the running statistics."""
    monkeypatch.setattr(_sync_batch_norm, "usable", lambda x: True)
    found, method = exchanges(*SIMCLR)
    assert norms(method) > 20
    assert found.total() == 2 * norms(method) + 3


def test_shuffled_images_and_their_keys_are_sent_once_each() -> None:
    """The other exchanges are the keys for the queue and the running statistics."""
    found, _ = exchanges(*MOCO)
    assert found == {"alltoall_base_": 2, "_allgather_base_": 1, "allreduce_": 1}


def test_moco_v3_gathers_the_keys_of_both_views_together(monkeypatch) -> None:
    """The rest are batch norm, which only the online encoder has backward, and the running statistics."""
    monkeypatch.setattr(_sync_batch_norm, "usable", lambda x: True)
    found, method = exchanges("method=moco_v3_imagenet", "bn_group=global")
    in_target = norms(method.target)
    online = norms(method) - in_target
    assert min(in_target, online) > 20
    assert found.total() == 2 * (2 * online + in_target) + 2


@pytest.mark.parametrize("queue", [False, True], ids=["", "queue"])
def test_swav_codes_both_views_together(monkeypatch, queue) -> None:
    """The rest are the queue's new rows, batch norm of two sizes and the running statistics."""
    monkeypatch.setattr(_sync_batch_norm, "usable", lambda x: True)
    name = "swav_queue_imagenet" if queue else "swav_imagenet"
    found, method = exchanges(
        f"method={name}", "loss=dcl", "bn_group=global", sizes=(SIZE, SIZE, SIZE // 2, SIZE // 2)
    )
    assert norms(method) > 20
    assert found.total() == 4 * norms(method) + method.iterations + queue + 1
