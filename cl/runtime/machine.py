"""The machine a run uses: device, data workers, and numerical precision."""

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from cl.runtime.cores import cores

Precision = Literal["fp32", "tf32", "bf16"]
M = TypeVar("M", bound=nn.Module)
MOST_WORKERS = 16  # data workers per process
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


@dataclass(frozen=True)
class Machine:
    """The device, the number of data workers, and the precision of convolutions and matrix products.

    read_every: steps between reads of the loss on the CPU; each read makes a GPU wait.
    fused: jitter colours by fused kernels instead of PyTorch's operations; this changes bits.
    """

    device: torch.device
    workers: int
    precision: Precision
    read_every: int = 1
    fused: bool = False

    def place(self, module: M) -> M:
        """The module on the device, with its convolutions channels-last."""
        return channels_last(module.to(self.device))

    def autocast(self) -> torch.autocast:
        """A context that computes in bfloat16 if `precision` is bf16."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


def channels_last(module: M) -> M:
    """The module with the weights of its 2D convolutions channels-last; others have no such format."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return module


def find(
    precision: Precision, *, deterministic: bool, fixed_shapes: bool = True, fused: bool = False
) -> Machine:
    """Set up this process's GPU or its share of the CPU; all cores but one get a data worker, up to 16.

    LOCAL_RANK and LOCAL_WORLD_SIZE, as set by `torchrun`, tell this process from the others on the machine.

    Args:
        fixed_shapes: images have few sizes, so it pays that cuDNN tries its algorithms on each.
        fused: as in `Machine`; no effect on a CPU.

    Raises:
        ValueError: the precision needs a GPU, or there are fewer GPUs than processes.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count()
    if precision == "tf32" and not torch.cuda.is_available():
        raise ValueError("precision=tf32 needs an NVIDIA GPU, and none is available; choose fp32")
    if torch.cuda.is_available() and processes > gpus:
        raise ValueError(
            f"{processes} processes need as many GPUs, found {gpus}; start at most one process per GPU"
        )
    share = max(1, cores() // processes)
    if torch.cuda.is_available():
        device, read_every = torch.device("cuda", local_rank), 20
        torch.cuda.set_device(device)
    else:
        device, read_every = torch.device("cpu"), 1
        _keep_freed_memory()
    torch.set_num_threads(share)
    _configure_backends(precision, deterministic, fixed_shapes)
    workers = min(MOST_WORKERS, max(1, share - 1))
    return Machine(device, workers, precision, read_every, fused and device.type == "cuda")


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Undo at the end what `find` sets for the whole process, for callers that go on with their own work."""
    backends = (
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
    )
    values = [getattr(backend, name) for backend, name in backends]
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        for (backend, name), value in zip(backends, values, strict=True):
            setattr(backend, name, value)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)


def _configure_backends(precision: Precision, deterministic: bool, fixed_shapes: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = (
        precision != "fp32"
    )  # bf16: for what stays in float32, such as logits
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = fixed_shapes and not deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(deterministic)
    # Memory is always written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _keep_freed_memory() -> None:
    """Let glibc keep what a step frees: returning it and faulting it in again costs a tenth of a step."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; copied from the CPU to a GPU without waiting for the work queued there."""
    pinned = x.pin_memory() if x.device.type == "cpu" and device.type != "cpu" else x
    return pinned.to(device, non_blocking=True)


def empty_for(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory on the CPU that `to_device` copies directly; allocating it again each step is cheap."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type != "cpu")


def slow_bf16() -> bool:
    """Whether bfloat16 is emulated on this hardware, many times slower than float32."""
    if torch.cuda.is_available():
        return not torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.machine() in ("x86_64", "AMD64"):
        return not torch.cpu._is_avx512_bf16_supported()
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
