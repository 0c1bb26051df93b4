"""How often GPUs exchange something in a training step, besides the average of the gradients."""

import pytest

from benchmarks.gpu.roofline.fake_gpu import FakeGpu
from benchmarks.gpu.roofline.trace import trace
from benchmarks.parameters import parameters

IMAGES = 8  # per GPU
TWO_VIEWS = ("views=mocov2", "views.random.size=32")
MULTICROP = ("views=swav_multicrop", "views.large.size=32", "views.small.size=16", "loss=dcl")


def step(gpus: int, *overrides: str) -> FakeGpu:
    """A step on one of the GPUs, with batch norm over all of them."""
    small = ("backbone=resnet18", "backbone.name=resnet10", "backbone.width=0.125")
    common = (*small, "loss=infonce", "bn_group=global", f"optim.batch_size={gpus * IMAGES}")
    return trace(parameters(*common, *overrides), gpus)


SINKHORN = 3  # iterations, for the codes of both views together


@pytest.mark.parametrize(
    ("overrides", "exchanges"),
    [
        (("method=simclr_imagenet", *TWO_VIEWS), 2),  # embeddings, each way
        (("method=moco_v3_imagenet", *TWO_VIEWS), 1),  # the keys of both views together
        (("method=swav_queue_imagenet", "optim.epochs=16", *MULTICROP), SINKHORN + 1),  # the queue's new rows
    ],
)
def test_a_step_exchanges_what_it_needs_once(overrides, exchanges) -> None:
    """The last exchange is the running statistics."""
    gpu = step(2, *overrides)
    operations = gpu.counts()
    assert operations["batch_norm_stats"] > 10
    # Each batch norm exchanges once forward and, if it is trained, once backward.
    of_batch_norm = operations["batch_norm_stats"] + operations["batch_norm_backward_reduce"]
    assert gpu.collectives().total() == of_batch_norm + exchanges + 1


def test_shuffled_images_and_their_keys_are_sent_once_each() -> None:
    """The other exchanges are the keys for the queue and the running statistics."""
    found = step(4, "method=moco_v2_imagenet", *TWO_VIEWS, "bn_group=4").collectives()
    assert found == {"c10d.alltoall_base_": 2, "c10d._allgather_base_": 1, "c10d.allreduce_": 1}
