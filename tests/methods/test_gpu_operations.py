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
    common = ("backbone=resnet18", "loss=infonce", "bn_group=global", f"optim.batch_size={gpus * IMAGES}")
    return trace(parameters(*common, *overrides), gpus)


def of_batch_norm(gpu: FakeGpu) -> int:
    """Each batch norm exchanges once forward and, if it is trained, once backward."""
    operations = gpu.counts()
    assert operations["batch_norm_stats"] > 20
    return operations["batch_norm_stats"] + operations["batch_norm_backward_reduce"]


SLOW = pytest.mark.slow


@SLOW  # tests/benchmarks/test_bounds.py counts them on eight
@pytest.mark.parametrize("gpus", [2, 4])
def test_simclr_exchanges_embeddings_once_each_way(gpus) -> None:
    """The last exchange is the running statistics."""
    gpu = step(gpus, "method=simclr_imagenet", *TWO_VIEWS)
    assert gpu.collectives().total() == of_batch_norm(gpu) + 3


@pytest.mark.parametrize("gpus", [pytest.param(2, marks=SLOW), 4])
def test_shuffled_images_and_their_keys_are_sent_once_each(gpus) -> None:
    """The other exchanges are the keys for the queue and the running statistics."""
    found = step(gpus, "method=moco_v2_imagenet", *TWO_VIEWS, "bn_group=4").collectives()
    assert found == {"c10d.alltoall_base_": 2, "c10d._allgather_base_": 1, "c10d.allreduce_": 1}


@pytest.mark.parametrize("gpus", [2, pytest.param(4, marks=SLOW)])
def test_moco_v3_gathers_the_keys_of_both_views_together(gpus) -> None:
    """The last exchange is the running statistics."""
    gpu = step(gpus, "method=moco_v3_imagenet", *TWO_VIEWS)
    assert gpu.collectives().total() == of_batch_norm(gpu) + 2


@pytest.mark.parametrize(
    ("queue", "gpus"), [(True, 2), pytest.param(False, 2, marks=SLOW), pytest.param(True, 4, marks=SLOW)]
)
def test_swav_codes_both_views_together(queue, gpus) -> None:
    """The rest are the queue's new rows and the running statistics."""
    method = f"method={'swav_queue_imagenet' if queue else 'swav_imagenet'}"
    gpu = step(gpus, method, "optim.epochs=16", *MULTICROP)
    iterations = 3
    assert gpu.collectives().total() == of_batch_norm(gpu) + iterations + queue + 1
