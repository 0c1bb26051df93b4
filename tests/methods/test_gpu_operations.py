"""How often two GPUs exchange something in a training step."""

from collections import Counter

import torch

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


def exchanges(*overrides: str) -> tuple[Counter[str], int]:
    """Those of the second step, without the average of the gradients, and the number of batch norms."""
    with pretended_ranks(2):
        params = parameters(
            "backbone=resnet18", "views=mocov2", "loss=infonce", *overrides, f"optim.batch_size={2 * IMAGES}"
        )
        task = build(params, Machine(GPU, 0, "fp32"), 2 * IMAGES).train()
        images = torch.empty(IMAGES, 3, SIZE, SIZE, device=GPU).contiguous(memory_format=torch.channels_last)
        positions = torch.arange(IMAGES, device=GPU)
        for step in range(2):  # the first counts negatives
            with Counting() as counting:
                task.begin_step(step, 0.0)
                task(Batch([images, images], positions, positions)).backward()
                task.after_step(0.0)
    found = Counter({name: counting.operations[name] for name in COLLECTIVES if counting.operations[name]})
    return found, sum(isinstance(module, GroupBatchNorm) for module in task.modules())


def test_a_batch_norm_over_ranks_exchanges_once_forward_and_once_backward(monkeypatch) -> None:
    """The rest are the embeddings, with their gradients, and the running statistics."""
    monkeypatch.setattr(_sync_batch_norm, "usable", lambda x: True)
    found, norms = exchanges(*SIMCLR)
    assert norms > 20
    assert found.total() == 2 * norms + 3


def test_shuffled_images_and_their_keys_are_sent_once_each() -> None:
    """The other exchanges are the keys for the queue and the running statistics."""
    found, _ = exchanges(*MOCO)
    assert found == {"alltoall_base_": 2, "_allgather_base_": 1, "allreduce_": 1}
