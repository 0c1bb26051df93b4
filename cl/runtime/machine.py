"""What a run takes from the machine it finds itself on, never from its parameters."""

import contextlib
import ctypes
import os
import platform
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from cl.runtime.cores import cores

Precision = Literal["fp32", "tf32", "bf16"]
M = TypeVar("M", bound=nn.Module)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


@dataclass(frozen=True)
class Machine:
    """The device, the data workers and the number format of convolutions and matrix products.

    read_every: every so many steps the host reads losses; each time a GPU would have to wait for it.
    """

    device: torch.device
    workers: int
    precision: Precision
    read_every: int = 1

    def place(self, module: M) -> M:
        """The module on the device, its convolutions channels-last."""
        return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def autocast(self) -> torch.autocast:
        """bfloat16 inside where `precision` asks for it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


def find(precision: Precision, *, deterministic: bool) -> Machine:
    """This process's GPU, or its share of the CPU; one data worker a core that is left, at least one.

    The environment says which of the machine's processes this is, as `torchrun` does: LOCAL_RANK and LOCAL_WORLD_SIZE.

    Raises:
        ValueError: the precision needs a GPU, or there are fewer GPUs than processes.
    """
    number, processes = (
        int(os.environ.get(name, usual)) for name, usual in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))
    )
    if precision == "tf32" and not torch.cuda.is_available():
        raise ValueError("precision=tf32 is a format of NVIDIA GPUs, and there is none here; choose fp32")
    if torch.cuda.is_available() and processes > torch.cuda.device_count():
        raise ValueError(
            f"{processes} processes, but {torch.cuda.device_count()} GPUs: start as many processes as GPUs"
        )
    share = max(1, cores() // processes)
    if torch.cuda.is_available():
        device, read_every = torch.device("cuda", number), 20
        torch.cuda.set_device(device)
    else:
        device, read_every = torch.device("cpu"), 1
        torch.set_num_threads(share)
        _keep_memory()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(deterministic)
    return Machine(device, max(1, share - 1), precision, read_every)


def _keep_memory() -> None:
    """Have glibc keep what a step frees for the next one: giving it back and faulting it in again costs a tenth of the step."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device, without waiting for what the device is busy with."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def slow_bf16() -> bool:
    """Whether bfloat16 would be emulated here: many times slower than float32."""
    if torch.cuda.is_available():
        return not torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.machine() in ("x86_64", "AMD64"):
        return not torch.cpu._is_avx512_bf16_supported()
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
