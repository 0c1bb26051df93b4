"""The memory that a piece of code takes."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch


def growth(function: Callable[[], object], device: torch.device | None = None) -> int:
    """Peak growth in bytes while `function` runs: of this process, or of PyTorch's allocations on a GPU."""
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)  # the freed memory that it keeps would hide growth
    with _resident_sizes() as sizes:
        function()
    before, largest = sizes
    return largest - before


def peak(*, reset: bool = False) -> float:
    """The peak resident size of this process in MiB, so far or since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("VmHWM"))) / 1024


@contextlib.contextmanager
def _resident_sizes() -> Iterator[list[int]]:
    """The first and the largest resident size of this process inside the block, sampled every 2 ms."""
    process = psutil.Process()
    sizes = [process.memory_info().rss] * 2
    done = threading.Event()

    def sample() -> None:
        while not done.is_set():
            sizes[1] = max(sizes[1], process.memory_info().rss)
            time.sleep(0.002)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield sizes
    finally:
        done.set()
        sampler.join()
