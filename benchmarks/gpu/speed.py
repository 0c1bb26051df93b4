"""How fast a GPU is."""

import tempfile
import time
from collections import deque
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.cifar import cifar10
from benchmarks.gpu.images import photographs, squares, stored
from benchmarks.gpu.session import Session
from benchmarks.gpu.steps import Spanning, compiled, floor, process_group, profile, step
from benchmarks.gpu.training import random_images
from benchmarks.log_partition import forms
from benchmarks.parameters import parameters
from cl.data.augment import augment
from cl.data.device_crops import DeviceTrainSet, resident
from cl.data.order import Plan
from cl.data.sets import TrainSet
from cl.data.to_device import ToDevice
from cl.networks import _sync_batch_norm
from cl.networks.batch_norm import GroupBatchNorm
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives
from cl.runtime.cores import cores
from cl.runtime.machine import Machine
from pipeline.support.locations import transform

CROPPING = 5.0  # seconds at most


def ceilings(session: Session) -> None:
    """What the device can do: matrix products in three precisions, and copies."""
    n, size = (256, 2**20) if session.tiny else (8192, 2**31)
    a, b = (torch.randn(n, n, device=session.device) for _ in range(2))
    half_a, half_b = a.bfloat16(), b.bfloat16()
    rates = {"bf16": 2 * n**3 / session.seconds(lambda: half_a @ half_b) / 1e12}
    for name, allowed in (("fp32", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        rates[name] = 2 * n**3 / session.seconds(lambda: a @ b) / 1e12
    torch.backends.cuda.matmul.allow_tf32 = False
    session.report(f"product of two {n} x {n} matrices, TFLOP/s", **rates)
    source, target = (torch.ones(size, device=session.device, dtype=torch.uint8) for _ in range(2))
    host = torch.ones(size // 8, dtype=torch.uint8)
    pinned = host if session.tiny else host.pin_memory()
    session.report(
        "copies, GB/s",
        on_device=2 * size / session.seconds(lambda: target.copy_(source)) / 1e9,
        from_host=len(host) / session.seconds(lambda: host.to(session.device)) / 1e9,
        from_pinned=len(host) / session.seconds(lambda: pinned.to(session.device)) / 1e9,
    )


def batch_norm(session: Session) -> None:
    """One batch norm, forward and backward: PyTorch's, in 8 batch-norm groups, and as on several GPUs."""
    shapes = [(512, 64, 112, 112), (512, 256, 56, 56), (512, 1024, 14, 14)]
    dtype = torch.float32 if session.tiny else torch.bfloat16
    for shape in [(8, 64, 16, 16)] if session.tiny else shapes:
        with session.attempt(str(shape)), process_group(session):
            x, gradient = (torch.randn(shape, device=session.device, dtype=dtype) for _ in range(2))
            x, gradient = (t.contiguous(memory_format=torch.channels_last) for t in (x, gradient))
            x.requires_grad_()
            norms = {
                "pytorch": nn.BatchNorm2d(shape[1]),
                "in_8_groups": GroupBatchNorm(nn.BatchNorm2d(shape[1]), 8),
                "over_ranks": Spanning(nn.BatchNorm2d(shape[1]), 1),
            }

            def forward_and_backward(norm: nn.Module, x: Tensor = x, gradient: Tensor = gradient) -> None:
                x.grad = None
                norm(x).backward(gradient)
                getattr(norm, "pending", []).clear()

            times = {}
            for name, norm in norms.items():
                norm.to(session.device).train()
                times[name] = 1000 * session.seconds(partial(forward_and_backward, norm))
            with patch.object(_sync_batch_norm, "usable", return_value=False):
                run = partial(forward_and_backward, norms["over_ranks"])
                times["over_ranks_reference"] = 1000 * session.seconds(run)
            times |= {
                "setting": "SyncBatchNorm's kernels instead of the reference",
                "times_as_fast": times["over_ranks_reference"] / times["over_ranks"],
            }
            session.report(f"{shape}, {dtype}, milliseconds", **times)


def partition(session: Session) -> None:
    """A SimCLR loss with gradient: ours by block, the dense form, lightly's; and a batch against a queue."""
    for n in session.in_time((64,) if session.tiny else (512, 8192, 65536)):
        reference = None
        for name, loss in forms(n, session.device)[1].items():
            with session.attempt(f"{n} pairs, {name}"):
                value = float(loss().detach())
                reference = value if reference is None else reference
                session.report(
                    f"{n} pairs, {name}",
                    abs(value / reference - 1) < 1e-3,
                    milliseconds=1000 * session.seconds(lambda loss=loss: loss().backward(), warm=1),
                    mib=session.mebibytes(lambda loss=loss: loss().backward()),
                )
    queries, queue = (16, 4096) if session.tiny else (256, 65536)
    q, keys = (F.normalize(torch.randn(k, 128, device=session.device), dim=1) for k in (queries, queue))
    q.requires_grad_()
    milliseconds = 1000 * session.seconds(lambda: log_partition(q, Negatives(keys), 0.2).sum().backward())
    session.report(f"{queries} queries, queue of {queue}", milliseconds=milliseconds)


def augmentation(session: Session) -> None:
    """Colour, blur and normalisation of a batch of one view: images per second, kernel launches, waits."""
    choices = ("cld_small",) if session.tiny else ("mocov2", "byol", "cld_small")
    for choice, fused in product(choices, (False,) if session.tiny else (False, True)):
        params = parameters(f"views={choice}")
        view = next(iter(params.views.values()))
        images, colour_params = random_images(view, 8 if session.tiny else 256)
        mean, std = transform(params.dataset).mean_and_std(session.device)
        on_device = images.to(session.device)
        run = partial(augment, on_device, colour_params, view, mean=mean, std=std, fused=fused)
        rate, gain = len(images) / session.seconds(run), {}
        if fused:
            plain = session.found(session.part, f"views={choice}, fused=False")["images_per_second"]
            gain = {"setting": "fused kernels instead of PyTorch's operations", "times_as_fast": rate / plain}
        counts = session.profile(run)[1]
        session.report(f"views={choice}, fused={fused}", images_per_second=rate, **counts, **gain)


def loading(session: Session) -> None:
    """What the data workers of this machine deliver, two views per image."""
    cases = {
        "JPEGs of 500 x 375": {},
        "the same at short side 256": {"shrink": 256},
        "pixels at short side 256": {"shrink": 256, "encode": "raw"},
    }
    params = parameters("dataset=imagenet", "backbone=resnet50", "views=mocov2")
    count, batch, steps = (32, 16, 4) if session.tiny else (512, 256, 40)
    workers = max(1, cores() - 1)
    with tempfile.TemporaryDirectory() as folder:
        files = photographs(Path(folder), count)
        for number, (name, changes) in enumerate(cases.items()):
            reader = stored(files, params, Path(folder) / f"shards{number}", **changes)
            data = TrainSet(
                reader, transform(params.dataset), list(params.views.values()), Plan(count, batch, 0)
            )
            began = 0.0
            for done, _ in enumerate(data.batches(0, steps, workers)):
                if done == 1:
                    began = time.perf_counter()
            rate = batch * (steps - 2) / (time.perf_counter() - began)
            session.report(f"{name}, {workers} workers", images_per_second=rate, per_worker=rate / workers)


def cropping(session: Session) -> None:
    """Two crops per image on the device, made by data workers or by the device: images per second.

    drawn_alone: the boxes and colours alone.
    """
    here = Machine(session.device, max(1, cores() - 1), "fp32")
    count, batch, steps = (32, 16, 4) if session.tiny else (1024, 512, 60)
    cases = {"32 px, as CIFAR": ("views=simclr_cifar", 32), "96 px, as STL-10": ("views=cld_small_96", 96)}
    for name, (choice, side) in session.in_time(cases.items()):
        with session.attempt(name), tempfile.TemporaryDirectory() as folder:
            params = parameters(choice)
            reader = stored(squares(Path(folder), count, side), params, Path(folder) / "shards")
            arguments = transform(params.dataset), list(params.views.values()), Plan(count, batch, 0)
            plain = TrainSet(reader, *arguments)
            on_it = DeviceTrainSet(resident(reader, here), reader, *arguments)
            by_workers = _crops_per_second(session, plain, plain.inputs(here), here.workers, steps)
            by_device = _crops_per_second(session, on_it, on_it.inputs(here), here.workers, steps)
            session.report(
                f"{name}, {here.workers} workers",
                by_workers=by_workers,
                by_device=by_device,
                setting="optim.cropping=device",
                times_as_fast=by_device / by_workers,
                drawn_alone=_crops_per_second(session, on_it, None, here.workers, steps),
            )


def _crops_per_second(
    session: Session, data: TrainSet, inputs: ToDevice | None, workers: int, steps: int
) -> float:
    """Images per second whose crops reach the device, after two batches, for at most `CROPPING` seconds."""
    began, done = 0.0, 0
    for done, batch in enumerate(data.batches(0, steps, workers), 1):
        if inputs:
            deque(inputs.crops(batch), maxlen=0)
        if done == 2:
            session.synchronise()
            began = time.perf_counter()
        elif done > 2 and time.perf_counter() - began > CROPPING:
            break
    session.synchronise()
    return data.plan.batch_size * (done - 2) / (time.perf_counter() - began)


PARTS = (
    floor,
    step,
    cifar10,
    compiled,
    cropping,
    augmentation,
    batch_norm,
    ceilings,
    partition,
    loading,
    profile,
)
