"""The least that pretraining asks of GPUs, from training steps on a GPU that is not there."""

from collections.abc import Iterator
from contextlib import nullcontext, suppress

import click
import torch
from torch import Tensor

from cl.config import Params
from cl.console.wording import memory
from cl.objective.batch import Batch
from cl.pretraining.task import PretrainingTask
from cl.report.paper_tables import IMAGES
from cl.runtime.machine import Machine
from cl.training import optim
from pipeline.support import locations, pretraining
from pipeline.support.roofline.backward import backward
from pipeline.support.roofline.fake_gpu import GPU, FakeGpu, pretended_ranks
from pipeline.support.roofline.operations import GPUS

SOME = 100_000  # images, where the data set does not say how many
LARGEST = 3  # costs that are shown
STEPS = 2  # the first counts negatives and reserves the optimizer's memory


def trace(params: Params, gpus: int = 1, images: int | None = None) -> FakeGpu:
    """The second training step of one of `gpus` GPUs: forward, backward, optimizer, target encoder.

    Without augmentation, the average of the gradients over GPUs, and `optim.compile`.

    Args:
        images: number of training images, if known; it matters to memory banks alone.

    Raises:
        AssertionError: the second step made the CPU wait for the GPU.
        ValueError: the batch size is not a multiple of the number of GPUs.
    """
    size, images = params.optim.batch_size, images or images_of(params) or SOME
    if size % gpus:
        raise ValueError(f"optim.batch_size={size} must be a multiple of the {gpus} GPUs")
    settings = params.optim.model_copy(update={"compile": False})
    params = params.model_copy(update={"optim": settings})
    gpu = FakeGpu("fp32" if params.precision == "fp32" else "tf32")
    with pretended_ranks(gpus) if gpus > 1 else nullcontext(), gpu:
        task = pretraining.build(params, Machine(GPU, 0, params.precision), images).train()
        optimizer = pretraining.optimizer(params, task)
        for step in range(STEPS):
            gpu.clear()
            gpu.may_wait = step == 0
            _step(params, task, optimizer, size // gpus, step)
    return gpu


def images_of(params: Params) -> int | None:
    """The number of training images of a data set of the papers."""
    return IMAGES.get(params.dataset.kind, (None,))[0]


def _step(
    params: Params, task: PretrainingTask, optimizer: torch.optim.Optimizer, images: int, step: int
) -> None:
    task.begin_step(step, step / STEPS)
    if step == 0:
        task.begin_epoch(1)  # prototypes are frozen in epoch 0
    backward(task(_batch(params, images)))
    for parameter in task.parameters():
        assert parameter.grad is None or parameter.grad.dtype == torch.float32
    optim.clip_gradients(optimizer, params.optim)
    optimizer.step()
    optimizer.zero_grad()
    task.after_step((step + 1) / STEPS)


def _batch(params: Params, images: int) -> Batch:
    def view(size: int) -> Tensor:
        rows = torch.empty(images, 3, size, size, device=GPU)
        return rows.contiguous(memory_format=torch.channels_last)

    positions = torch.arange(images, device=GPU)
    return Batch([view(size) for size in params.view_sizes], torch.zeros_like(positions), positions)


def show(params: Params, name: str, gpus: int) -> None:
    """Print bounds for `gpus` GPUs of the kind `name`, for the images in data/shards if they are there."""
    images = None
    with suppress(ValueError):  # no shards, or those of another data set
        images = len(locations.reader("train", params.dataset))
    if images:
        params, *_ = locations.data(params, click.echo)
    click.echo("\n".join(lines(params, name, gpus, images)))


def lines(params: Params, name: str, gpus: int, images: int | None = None) -> Iterator[str]:
    """What to tell about `gpus` GPUs of the kind `name`; `images` as in `trace`."""
    card, size = GPUS[name], params.optim.batch_size
    images = images or images_of(params)
    gpu = trace(params, gpus, images)
    seconds = gpu.floor(card)
    read_and_written = sum(each.bytes for each in gpu.operations) / 1e9
    yield (
        f"calculated for {gpus} x {name} in {params.precision}: a bound, not a measurement, as if every "
        "operation ran at the card's best rate, and augmentation, launches and exchanges took no time"
    )
    rate = float(f"{size / seconds:.3g}")
    yield f"step: at least {1000 * seconds:.3g} ms for {size} images, at most {rate:g} images/s"
    yield (
        f"per GPU and step: {len(gpu.operations)} operations, {read_and_written:.3g} GB, "
        f"{sum(each.flops for each in gpu.operations) / 1e12:.3g} TFLOP, "
        f"{gpu.collectives().total()} exchanges besides the gradients"
    )
    costs = [
        f"{family} {100 * cost / seconds:.0f} %" for family, cost in gpu.costs(card).most_common(LARGEST)
    ]
    yield f"largest costs: {', '.join(costs)}"
    yield f"memory: at least {memory(gpu.peak)} per GPU, without CUDA's and cuDNN's own"
    if images:
        steps = max(1, round(params.optim.epochs * (images // size)))
        yield f"pretraining: at least {steps * seconds / 3600:.3g} hours for {steps} steps, without kNN"
