"""Whether results on a GPU are correct.

The CPU is the reference, which the tests hold to the papers' formulas.
"""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.gpu.images import squares, stored
from benchmarks.gpu.session import Session, relative_error
from benchmarks.gpu.steps import process_group
from benchmarks.gpu.training import (
    CPU,
    STEPS,
    combinations,
    params_of,
    pretrain,
    random_images,
    trajectory,
    write_shards,
)
from benchmarks.parameters import parameters
from cl.config import Params
from cl.data import augment_gpu
from cl.data.augment import augment
from cl.data.device_crops import DeviceTrainSet, resident
from cl.data.order import Plan
from cl.data.sets import TrainSet
from cl.networks import _reference_batch_norm, _sync_batch_norm
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives
from cl.runtime import machine
from cl.runtime.cores import cores
from cl.runtime.distributed import _Gather
from cl.runtime.tensor_files import fingerprint
from cl.training.checkpoints import Checkpoints
from pipeline.support import provenance
from pipeline.support.locations import transform
from tests.support import golden
from tests.support.methods import USUAL, usual_name

EXACT, SINGLE = 1e-8, 2e-3  # largest relative errors, in float64 and float32
RECORDED = 1e-7  # the same after ten steps
NORMALISED = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}  # the same of batch norm
ROWS = [
    ((8, 16, 5, 5), torch.channels_last),
    ((8, 16, 5, 5), torch.contiguous_format),
    ((8, 16), torch.contiguous_format),
]
ROUNDING = 0.2, 2  # largest mean and largest difference of crops, of 255
NCCL = "cpu:gloo,cuda:nccl"
SMALL_RUN = (
    "dataset.train_patches=6",
    "dataset.val_patches=3",
    "dataset.shard_images=50",
    "optim.batch_size=32",
    "optim.epochs=4",
    "optim.warmup_epochs=0",
    "optim.warmup_start=0",
)
TINY_RUN = ("optim.batch_size=8", "optim.epochs=0.27")  # 4 steps
RESUMED = (
    ["backbone=resnet18_small"],
    ["backbone=resnet18", "precision=bf16"],
    ["backbone=resnet18", "method=moco_v2", "bn_group=16", "loss=infonce", "precision=bf16"],
    ["backbone=resnet18", "method=byol", "optim=lars", "precision=bf16"],
    ["backbone=resnet18_small", "optim.microbatches=2", "bn_group=16", "precision=bf16"],
    ["backbone=vit_tiny_patch4", "optim=adamw", "precision=bf16"],
    ["backbone=resnet18", "optim.compile=true", "precision=bf16"],
)
CUT = 3  # the step after which a run is cut


def card(session: Session) -> None:
    """The machine and the versions."""
    found = None if session.tiny else torch.cuda.get_device_properties(0)
    session.report(
        "card",
        gpu=found.name if found else "none",
        gpus=0 if session.tiny else machine.gpus(),
        gib=found.total_memory / 2**30 if found else 0.0,
        **provenance.versions(),
        cores=cores(),
    )


def recorded(session: Session) -> None:
    """Ten steps of every method with its usual loss in float64, against the golden values of the tests."""
    here = machine.Machine(session.device, 0, "fp32")
    values = json.loads(golden.FILE.read_text())
    for case, loss in session.in_time(USUAL[:1] if session.tiny else USUAL):
        name = usual_name(case, loss)
        with session.attempt(name):
            found = golden.measure(case, loss, here)
            error = max(abs(a / b - 1) for a, b in zip(found, values[name], strict=True))
            session.report(name, error < RECORDED, error=error)


def methods(session: Session) -> None:
    """Every method with every loss: some steps in float64 and one in float32, against the CPU in float64.

    First each method with one loss.
    """
    # No TF32, and no search for the fastest kernel of each shape, which takes longer than the steps.
    machine.find("fp32", deterministic=False, fixed_shapes=False)
    steps = 1 if session.tiny else STEPS
    for number, cell in session.in_time(enumerate(combinations(session))):
        what = f"{cell.method}, {cell.loss}, {cell.views}, {cell.patches}"
        with session.attempt(what):
            params = params_of(session, cell, number)
            expected = trajectory(params, CPU, torch.float64, steps)
            found = trajectory(params, session.device, torch.float64, steps)
            exact = relative_error(found[-1], expected[-1])
            single = relative_error(trajectory(params, session.device, torch.float32, 1)[0], expected[0])
            session.report(what, exact < EXACT and single < SINGLE, float64=exact, float32=single)


def batch_norm(session: Session) -> None:
    """Batch norm over ranks, in two batch-norm groups: SyncBatchNorm's kernels against float64 on the CPU.

    On a CPU, which does not have them, the reference takes their place.
    """
    rng = torch.Generator().manual_seed(0)
    form = (
        partial(_reference_batch_norm.normalise, spans=True) if session.tiny else _sync_batch_norm.normalise
    )
    for (shape, layout), (dtype, bound), vectors in product(ROWS, NORMALISED.items(), (2, 0)):
        what = f"{shape}, {layout}, {dtype}, {'weight and bias' if vectors else 'neither'}"
        with session.attempt(what), process_group(session):
            x, g = (torch.randn(shape, generator=rng).mul(2).add(1).to(dtype) for _ in range(2))
            single = torch.promote_types(dtype, torch.float32)
            affine = torch.rand(vectors, shape[1], generator=rng, dtype=single).unbind()
            inputs = [each.contiguous(memory_format=layout).to(session.device) for each in (x, g)]
            found = _normalised(form, *inputs, [each.to(session.device) for each in affine])
            exact = partial(_reference_batch_norm.normalise, spans=False)
            expected = _normalised(exact, x.double(), g.double(), [each.double() for each in affine])
            error = max(relative_error(a, b) for a, b in zip(found, expected, strict=True))
            session.report(what, error < bound, error=error)


def _normalised(
    form: Callable[..., tuple[Tensor, Tensor]], x: Tensor, g: Tensor, affine: list[Tensor]
) -> list[Tensor]:
    """The normalised rows, the statistics, and the gradients of the rows and of weight and bias, if given."""
    inputs = [each.requires_grad_() for each in (x, *affine)]
    weight, bias = affine or (None, None)
    y, statistics = form(x, weight, bias, 1e-5, 2)
    return [y, statistics, *torch.autograd.grad(y, inputs, g)]


def partition(session: Session) -> None:
    """The log-partition and its gradient against the dense form in float64."""
    for n, k in ((3000, 3000), (300, 5000)):
        torch.manual_seed(0)
        queries = F.normalize(torch.randn(n, 128, dtype=torch.float64), dim=1)
        negatives = queries if n == k else F.normalize(torch.randn(k, 128, dtype=torch.float64), dim=1)
        itself = torch.arange(n)
        excluded = torch.stack([itself, itself ^ 1], 1)
        expected = _dense(queries, negatives, excluded)
        for dtype, bound in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
            q = queries.to(session.device, dtype).requires_grad_()
            others = q if n == k else negatives.to(session.device, dtype)
            found = log_partition(q, Negatives(others, excluded), 0.1)
            (gradient,) = torch.autograd.grad(found.square().mean(), q)
            pairs = zip((found, gradient), expected, strict=True)
            error = max(relative_error(a, b) for a, b in pairs)
            session.report(f"{n} x {k}, {dtype}", error < bound, error=error)


def _dense(queries: Tensor, negatives: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """The log-partition and the gradient of its mean square with respect to the queries."""
    q = queries.clone().requires_grad_()
    logits = q @ (q if queries is negatives else negatives).T / 0.1
    values = logits.scatter(1, excluded, -torch.inf).logsumexp(1)
    return values, torch.autograd.grad(values.square().mean(), q)[0]


def augmentation(session: Session) -> None:
    """The GPU's colour operations against the CPU's, which work image by image with OpenCV."""
    choices = ("small", "cld_small", "simclr_cifar") if session.tiny else ("mocov2", "byol", "cld_small")
    for choice, fused in product(choices, (False,) if session.tiny else (False, True)):
        with session.attempt(f"views={choice}, fused={fused}"):
            params = parameters(f"views={choice}")
            view = next(iter(params.views.values()))
            images, colour_params = random_images(view, 4 if session.tiny else 64)
            mean, std = transform(params.dataset).mean_and_std(CPU)
            expected = augment(images, colour_params, view, mean=mean, std=std)
            numbers = {"mean": mean.to(session.device), "std": std.to(session.device)}
            found = augment_gpu.augment(
                images.to(session.device), colour_params, view, fused=fused, **numbers
            ).cpu()
            difference = (found - expected).abs() * std
            far = float((difference > 1e-4).float().mean())
            session.report(
                f"views={choice}, fused={fused}", far < 1e-4, worst=float(difference.max()), beyond_1e4=far
            )


def cropping(session: Session) -> None:
    """The device's crops against the data workers'."""
    here = machine.Machine(session.device, 0, "fp32")
    count = 8 if session.tiny else 64
    with tempfile.TemporaryDirectory() as name:
        files = squares(Path(name), count, 96)
        for choice in ("byol", "swav_multicrop"):  # bicubic and bilinear
            with session.attempt(f"views={choice}"):
                params = parameters(f"views={choice}")
                reader = stored(files, params, Path(name) / choice)
                views, plan = list(params.views.values()), Plan(count, count, 0)
                plain = TrainSet(reader, transform(params.dataset), views, plan)
                data = DeviceTrainSet(resident(reader, here), reader, plain.transform, views, plan)
                mean, most = _difference(plain, data, here)
                passed = mean <= ROUNDING[0] and most <= ROUNDING[1]
                session.report(f"views={choice}", passed, mean=mean, most=most)


def _difference(plain: TrainSet, data: DeviceTrainSet, here: machine.Machine) -> tuple[float, float]:
    """Mean and largest difference of the device's crops of the first batch from the workers', of 255."""
    inputs = data.inputs(here)
    found = [
        view.cpu().int()
        for crops, (_, count) in zip(inputs.crops(data[0]), inputs.kinds, strict=True)
        for view in crops.chunk(count)
    ]
    differences = [(a - b).abs().double() for a, b in zip(found, plain[0].images, strict=True)]
    return max(float(x.mean()) for x in differences), max(float(x.max()) for x in differences)


def loop(session: Session) -> None:
    """The training loop with its own augmentation: the mean loss of an epoch, against the CPU.

    With the default learning rate, changing the weights by 1e-6 would change the loss by up to 1 %.
    """
    cases = (
        ["backbone=resnet18_small"],
        ["backbone=resnet18", "method=moco_v2", "bn_group=16", "loss=infonce"],
    )
    with tempfile.TemporaryDirectory() as folder:
        shards = write_shards(parameters(*SMALL_RUN), Path(folder))
        for choices in cases[-1:] if session.tiny else cases:
            with session.attempt(" ".join(choices)):
                params = parameters(*SMALL_RUN, *choices, "optim.epochs=1", "optim.base_lr=0.0003")
                here = machine.find("fp32", deterministic=False)
                runs = (here, machine.Machine(CPU, 0, "fp32"))
                found, expected = (pretrain(params, each, shards)[1][0]["loss"] for each in runs)
                difference = abs(found / expected - 1)
                session.report(" ".join(choices), difference < 1e-3, found=found, cpu=expected)


class _PowerCutError(Exception):
    """Ends a training in the middle."""


class _CutShort(Checkpoints):
    """Saves after every step until the power is cut after step CUT; `restored` is the step after the cut."""

    restored = 0

    def due(self) -> bool:
        return not self.restored

    def save(self, step: int, model: nn.Module, optimizer: Optimizer, history: dict[str, Any]) -> None:
        super().save(step, model, optimizer, history)
        if step == CUT:
            self.finish()
            raise _PowerCutError

    def restore(self, *arguments: Any) -> tuple[int, dict[str, Any]]:
        self.restored, history = super().restore(*arguments)
        return self.restored, history


def resume(session: Session) -> None:
    """With `deterministic=true`: the same bits twice, and after a power cut."""
    with tempfile.TemporaryDirectory() as folder:
        shards = write_shards(parameters(*SMALL_RUN), Path(folder))
        chosen = [["backbone=resnet18"]] if session.tiny else RESUMED
        for number, choices in session.in_time(enumerate(chosen)):
            with session.attempt(" ".join(choices)):
                params = parameters(*SMALL_RUN, *choices, *(TINY_RUN if session.tiny else ()))
                here = machine.find(params.precision, deterministic=True)
                whole, again = (fingerprint(pretrain(params, here, shards)[0]) for _ in range(2))
                saved = _CutShort(Path(folder) / f"run{number}")
                try:
                    pretrain(params, here, shards, saved)
                except _PowerCutError:
                    resumed = fingerprint(pretrain(params, here, shards, saved)[0])
                else:
                    raise RuntimeError(f"the power was not cut after step {CUT}")
                results = {"twice": whole == again, "after_cut": whole == resumed}
                passed = all(results.values()) and saved.restored == CUT
                session.report(" ".join(choices), passed, **results, restored=saved.restored)
    torch.use_deterministic_algorithms(False)


def ranks(session: Session) -> None:
    """Two processes against one: batch norm, gathering and gradients over ranks.

    With gloo on one GPU, which NCCL refuses; and with NCCL on two, if there are two.
    """
    cells = list(combinations(session, 1))
    params = [params_of(session, cell, number) for number, cell in enumerate(cells)]
    method = "fork" if session.tiny else "spawn"  # CUDA cannot be forked
    several = not session.tiny and machine.gpus() > 1
    with tempfile.TemporaryDirectory() as folder:
        for name, device in [("gloo", str(session.device)), *([(NCCL, "cuda")] if several else [])]:
            for number in (1, 2):
                settings = (number, f"{folder}/{device}{number}", name, device, params)
                mp.start_processes(_rank, settings, number, start_method=method)
            single, shared = (torch.load(f"{folder}/{device}{n}.pt", weights_only=True) for n in (1, 2))
            for cell, expected, found in zip(cells, single, shared, strict=True):
                error = relative_error(found, expected)
                what = f"{name}: {cell.method}, {cell.loss}, {cell.views}, {cell.patches}"
                session.report(what, error < EXACT, error=error)


def _rank(rank: int, ranks: int, files: str, backend: str, device: str, params: list[Params]) -> None:
    torch.set_num_threads(1)
    here = torch.device("cuda", rank) if backend == NCCL else torch.device(device)
    if backend == NCCL:
        torch.cuda.set_device(here)
    dist.init_process_group(backend, init_method=f"file://{files}", rank=rank, world_size=ranks)
    found = [trajectory(each, here, torch.float64)[-1] for each in params]
    if rank == 0:
        torch.save(found, f"{files}.pt")
    dist.barrier()
    dist.destroy_process_group()


def backends(session: Session) -> None:
    """What `cl.console.launch` sets up, in one process: collectives on CPU and GPU tensors."""
    backend = "gloo" if session.tiny else NCCL
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        x = torch.arange(6.0, device=session.device).view(2, 3).requires_grad_()
        _Gather.apply(x).square().sum().backward()
        flags = torch.tensor([1, 0])
        dist.all_reduce(flags)
        dist.barrier()
        dist.destroy_process_group()
    session.report(backend, torch.equal(x.grad, 2 * x.detach()) and flags.tolist() == [1, 0])


PARTS = (
    card,
    backends,
    batch_norm,
    partition,
    recorded,
    methods,
    resume,
    ranks,
    augmentation,
    cropping,
    loop,
)
