"""The machine a run uses: device, data workers, and numerical precision."""

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import shutil
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from cl.runtime.cores import share_of_cores, workers

Precision = Literal["fp32", "tf32", "bf16"]
PrecisionChoice = Literal["auto"] | Precision
M = TypeVar("M", bound=nn.Module)
MOST_WORKERS = 16  # data workers per process
# Threads of an operation on the CPU, such as a copy to pinned memory. More would spin for milliseconds
# after it, on the cores of the data workers.
BESIDE_GPU = 1
BACKENDS: Any = torch.backends  # whose precisions PyTorch's types lack
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # read when cuBLAS starts
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
DEVICE_FILES = Path("/dev")
DRIVER = Path("/sys/module/nvidia/version")  # of the loaded kernel module
AMD_DRIVER = Path("/dev/kfd")


@dataclass(frozen=True)
class Machine:
    """The device, the number of data workers, and the precision of convolutions and matrix products.

    read_every: steps between reads of the loss on the CPU.
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


def gpus() -> int:
    """The number of GPUs that this process may use, as CUDA counts them; ValueError if it cannot start them.

    `torch.cuda.device_count` asks the driver instead, which also counts GPUs that CUDA cannot start, and all
    cards where CUDA offers one MIG instance.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error below says it
        if torch.cuda.is_available():
            return torch._C._cuda_getDeviceCount()
        shown = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = chosen is not None and not re.match(r"\d|GPU-|MIG-", chosen)
    if hidden or not (shown or any(DEVICE_FILES.glob("nvidia[0-9]*"))) or not torch.backends.cuda.is_built():
        return 0
    try:
        torch.cuda.init()
    except RuntimeError as error:
        if not shown and not chosen and "No CUDA GPUs" in str(error):
            return 0  # a batch system shows the files of GPUs that it has not lent
        names = f" that CUDA_VISIBLE_DEVICES={chosen} names" if chosen else ""
        raise ValueError(
            f"CUDA {torch.version.cuda} cannot start the GPUs{names} (NVIDIA driver {driver_version()}): "
            f"{str(error).partition('. ')[0]}; see what `nvidia-smi` says, update the driver, "
            "or put CUDA_VISIBLE_DEVICES= before the command to use the CPU"
        ) from error
    return shown


def untested_gpu() -> str | None:
    """A sentence about a GPU of AMD or Apple, if there is one; PyTorch's build for AMD would use it."""
    if torch.version.hip:
        return "GPUs of AMD are not tested: compare results with those of a CPU"
    unused = not gpus() and (AMD_DRIVER.exists() or torch.backends.mps.is_available())
    return "GPUs of AMD and Apple are not used, as they are not tested" if unused else None


def driver_version() -> str | None:
    """The version of the NVIDIA driver, such as 580.65.06; None if unknown."""
    return DRIVER.read_text().strip() if DRIVER.exists() else None


def default_device() -> torch.device:
    """The first GPU, or the CPU if there is none."""
    return torch.device("cuda" if gpus() else "cpu")


def find(precision: PrecisionChoice, *, deterministic: bool, fixed_shapes: bool = True) -> Machine:
    """Set up this process's GPU or its share of the CPU; all cores but one get a data worker, up to 16.

    CL_WORKERS lowers that number. LOCAL_RANK and LOCAL_WORLD_SIZE, as set by `torchrun`, tell this process
    from the others on the machine.

    Args:
        precision: auto is bf16 on a GPU that computes in it, and else fp32.
        fixed_shapes: images have few sizes, so it pays that cuDNN tries its algorithms on each.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    found = gpus()
    precision = decided(precision)
    if precision == "tf32" and not found:
        raise ValueError("precision=tf32 needs an NVIDIA GPU, and none is available; choose fp32")
    if found and processes > found:
        raise ValueError(f"{processes} processes need as many GPUs, found {found}; start at most one per GPU")
    share = share_of_cores()
    if found:
        device, read_every, threads = torch.device("cuda", local_rank), 20, BESIDE_GPU
        torch.cuda.set_device(device)
    else:
        device, read_every, threads = torch.device("cpu"), 1, share
        _keep_freed_memory()
    torch.set_num_threads(threads)
    _configure_backends(precision, deterministic, fixed_shapes)
    count = workers(min(MOST_WORKERS, share - 1))
    return Machine(device, count, precision, read_every, device.type == "cuda" and fused_kernels())


def decided(precision: PrecisionChoice) -> Precision:
    """The precision that `auto` becomes on this machine, or the given one."""
    if precision == "auto":
        return "bf16" if gpus() and not slow_bf16() else "fp32"
    return precision


def fused_kernels() -> bool:
    """Whether GPUs use the fused kernels: as CL_FUSED says, or else if Triton can compile them."""
    if asked := os.environ.get("CL_FUSED"):
        if asked not in ("0", "1"):
            raise ValueError(f"CL_FUSED={asked}: choose 1 for fused kernels on a GPU, or 0")
        return asked == "1"
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    header = Path(sysconfig.get_path("include", "posix_prefix")) / "Python.h"  # as Triton, also on Debian
    return bool(importlib.util.find_spec("triton")) and any(map(shutil.which, compilers)) and header.exists()


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Undo at the end what `find` sets for the whole process, for callers that go on with their own work."""
    cudnn = BACKENDS.cudnn
    parts = BACKENDS.cuda.matmul, BACKENDS.mkldnn.matmul, cudnn.conv, cudnn.rnn
    places = [*((part, "fp32_precision") for part in parts), (cudnn, "benchmark")]
    places.append((torch.utils.deterministic, "fill_uninitialized_memory"))
    before = [(place, name, getattr(place, name)) for place, name in places]
    products, convolutions = "highest", True  # PyTorch's defaults
    with contextlib.suppress(RuntimeError):  # raised if the caller has set `fp32_precision` instead
        products = torch.get_float32_matmul_precision()
    with contextlib.suppress(RuntimeError):
        convolutions = cudnn.allow_tf32
    threads, deterministic = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    has_workspace = WORKSPACE in os.environ
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32 = convolutions
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(deterministic)
        for place, name, value in before:
            setattr(place, name, value)
        if gpu is not None:
            torch.cuda.set_device(gpu)
        if not has_workspace:
            os.environ.pop(WORKSPACE, None)


def _configure_backends(precision: Precision, deterministic: bool, fixed_shapes: bool) -> None:
    # With bf16 too: for what stays in float32, such as logits.
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    for part in (BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn):  # or a caller's global setting decides
        part.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cudnn.benchmark = fixed_shapes and not deterministic
    if deterministic:
        os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    # Memory is always written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _keep_freed_memory() -> None:
    """Let glibc keep what a step frees: returning it and faulting it in again costs a tenth of a step."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library, or Windows
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; copied from the CPU to a GPU without waiting for the work queued there."""
    pinned = x.pin_memory() if x.device.type == "cpu" and device.type != "cpu" else x
    return pinned.to(device, non_blocking=True)


def to_host(x: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """The tensor on the CPU; from a GPU, it has arrived once the event has occurred."""
    if x.device.type == "cpu":
        return x, None
    arrived = torch.cuda.Event()
    copy = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
    arrived.record()
    return copy, arrived


def empty_for(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory on the CPU that `to_device` copies directly; allocating it again each step is cheap."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type != "cpu")


def slow_bf16() -> bool:
    """Whether bfloat16 is emulated on this hardware, many times slower than float32."""
    if gpus():
        return not torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.machine() in ("x86_64", "AMD64"):
        return not torch.cpu._is_avx512_bf16_supported()
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
