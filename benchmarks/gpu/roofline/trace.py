"""Training steps on a GPU that is not there."""

from contextlib import nullcontext

import torch
from torch import Tensor

from benchmarks.gpu.roofline.backward import backward
from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu, pretended_ranks
from cl.config import Params
from cl.networks.teacher import StoredTeacher
from cl.objective.batch import Batch
from cl.pretraining.task import PretrainingTask
from cl.report.paper_tables import IMAGES
from cl.runtime.machine import Machine, Precision
from cl.training import optim
from pipeline.support import pretraining

SOME = 100_000  # images of other data sets; the number matters to memory banks alone
STEPS = 2  # the first counts negatives and reserves the optimizer's memory


def trace(params: Params, gpus: int = 1) -> FakeGpu:
    """The second training step of one of `gpus` GPUs: forward, backward, optimizer, target encoder.

    Without augmentation, the average of the gradients over GPUs, and `optim.compile`.

    Raises:
        AssertionError: the second step made the CPU wait for the GPU.
        ValueError: the batch size is not a multiple of the number of GPUs.
    """
    size = params.optim.batch_size
    if size % gpus:
        raise ValueError(f"optim.batch_size={size} must be a multiple of the {gpus} GPUs")
    precision: Precision = "bf16" if params.precision == "auto" else params.precision
    params = params.model_copy(update={"optim": params.optim.model_copy(update={"compile": False})})
    gpu = FakeGpu("fp32" if precision == "fp32" else "tf32")
    with pretended_ranks(gpus) if gpus > 1 else nullcontext(), gpu:
        images, width = images_of(params) or SOME, params.method.embedding_width
        teacher = StoredTeacher(torch.zeros(images, width, device=GPU)) if params.teacher else None
        task = pretraining.build(params, Machine(GPU, 0, precision), images, teacher=teacher).train()
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
