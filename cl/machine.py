"""What a run takes from the machine it finds itself on, never from its parameters."""

import os
import platform
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import nn

from cl.cores import cores

Precision = Literal["fp32", "tf32", "bf16"]
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Machine:
    """The device, the data workers and the number format of convolutions and matrix products."""

    device: torch.device
    workers: int
    precision: Precision

    def place(self, module: M) -> M:
        """The module on the device, its convolutions channels-last."""
        return module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def autocast(self) -> torch.autocast:
        """bfloat16 inside where `precision` asks for it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


def find(precision: Precision, *, deterministic: bool) -> Machine:
    """The first GPU, or the CPU with one thread a core; one data worker a core that is left, at least one.

    Raises:
        ValueError: the run was started as one of several processes, or the precision needs a GPU.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or int(os.environ.get("CL_PROCESSES", "1")) > 1:
        raise ValueError("several processes (WORLD_SIZE, CL_PROCESSES) are not supported yet: start a single one")
    if precision == "tf32" and not torch.cuda.is_available():
        raise ValueError("precision=tf32 is a format of NVIDIA GPUs, and there is none here; choose fp32")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(cores())
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.use_deterministic_algorithms(deterministic)
    return Machine(device, max(1, cores() - 1), precision)


def slow_bf16() -> bool:
    """Whether bfloat16 would be emulated here: many times slower than float32."""
    if torch.cuda.is_available():
        return not torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.machine() in ("x86_64", "AMD64"):
        return not torch.cpu._is_avx512_bf16_supported()
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
