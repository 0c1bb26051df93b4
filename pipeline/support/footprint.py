"""The memory that a run takes: on a GPU what PyTorch reserves, otherwise what its processes hold."""

import contextlib
import os
from pathlib import Path

import psutil
import torch

from cl.runtime.cores import available_memory
from cl.runtime.distributed import max_over_ranks


def peak(device: torch.device) -> int:
    """Peak bytes on the GPU that uses most; on CPUs, those of this machine's processes and data workers."""
    if device.type == "cuda":
        return round(max_over_ranks(torch.cuda.max_memory_reserved())[0])
    return round(max_over_ranks(peak_of_tree(os.getpid()))[0]) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def free(device: torch.device) -> int:
    """The bytes of the same memory that this run may use."""
    return torch.cuda.mem_get_info()[0] if device.type == "cuda" else available_memory() + peak(device)


def peak_of_tree(pid: int) -> int:
    """Peak resident bytes of a process, plus the bytes unique to its children now; 0 if it has ended.

    Unlike the sum of proportional sizes (PSS), it does not depend on other programs with the same libraries.
    """
    total = 0
    with contextlib.suppress(psutil.Error):  # the process or a child has ended
        process = psutil.Process(pid)
        total = _peak(process)
        for child in process.children(recursive=True):
            total += child.memory_full_info().uss
    return total


def _peak(process: psutil.Process) -> int:
    """Its largest resident size so far; outside of Linux, its current one."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return process.memory_info().rss
