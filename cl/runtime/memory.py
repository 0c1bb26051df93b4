"""The memory that a piece of code or a process takes, and how much there is."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch

from cl.runtime.cores import folders


def growth(function: Callable[[], object], device: torch.device | None = None) -> int:
    """Peak growth in bytes while `function` runs: of this process, or of PyTorch's allocations on a GPU."""
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)  # freed memory that glibc keeps would hide growth
    with _resident_sizes() as sizes:
        function()
    before, largest = sizes
    return largest - before


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


def peak_of_tree(pid: int) -> int:
    """Peak resident bytes of a process and of those that it started and that are still running.

    Memory that they share counts once: the sum of each one's proportional size (PSS) now, and of how much
    larger its resident size (RSS) was at its peak. 0 where the kernel does not say, as outside of Linux.
    """
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(_peak(Path(f"/proc/{process.pid}")) for process in processes)


def _peak(process: Path) -> int:
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError):  # it has ended
        for name in ("status", "smaps_rollup"):
            for line in (process / name).read_text().splitlines():
                key, *value = line.split()
                if value[1:] == ["kB"]:
                    sizes[key.rstrip(":")] = int(value[0]) * 1024
    return sizes["Pss"] + sizes["VmHWM"] - sizes["Rss"] if "Pss" in sizes else 0


def available(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that new processes may use: what the machine has left, or this process's control groups allow."""
    allowed = [psutil.virtual_memory().available]
    for folder in folders(groups, own):
        with contextlib.suppress(OSError, ValueError):  # no limit
            allowed.append(_number(folder / "memory.max") - _number(folder / "memory.current"))
    return min(allowed)


def _number(file: Path) -> int:
    return int(file.read_text())
