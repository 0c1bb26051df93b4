"""The memory that processes use, and how much is available."""

import contextlib
import ctypes
from pathlib import Path

import psutil

from cl.runtime.cores import folders


def return_freed() -> None:
    """Return the freed memory that glibc keeps to the system; otherwise it would hide growth."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


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


def available(root: Path = Path("/sys/fs/cgroup"), members: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that new processes may use: what the machine or this process's control groups have left."""
    allowed = [psutil.virtual_memory().available]
    for folder in folders(root, members):
        with contextlib.suppress(OSError, ValueError):  # no limit
            allowed.append(_number(folder / "memory.max") - _number(folder / "memory.current"))
    return min(allowed)


def _number(file: Path) -> int:
    return int(file.read_text())
