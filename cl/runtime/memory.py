"""The memory that processes take, and how much there is."""

import contextlib
import ctypes
from pathlib import Path

import psutil

from cl.runtime.cores import folders


def return_freed() -> None:
    """Give freed memory that glibc keeps back to the system, because it would hide growth."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def peak_of_tree(pid: int) -> int:
    """Peak resident bytes of a process, and the bytes that only its children have now; 0 if it has ended.

    Unlike the sum of proportional sizes (PSS), it is the same if other programs use the same libraries.
    """
    found = 0
    with contextlib.suppress(psutil.Error):  # the process, or one that it started, has ended
        process = psutil.Process(pid)
        found = _peak(process)
        for child in process.children(recursive=True):
            found += child.memory_full_info().uss
    return found


def _peak(process: psutil.Process) -> int:
    """Its largest resident size so far; outside of Linux, its current one."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return process.memory_info().rss


def available(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that new processes may use: what the machine has left, or this process's control groups allow."""
    allowed = [psutil.virtual_memory().available]
    for folder in folders(groups, own):
        with contextlib.suppress(OSError, ValueError):  # no limit
            allowed.append(_number(folder / "memory.max") - _number(folder / "memory.current"))
    return min(allowed)


def _number(file: Path) -> int:
    return int(file.read_text())
