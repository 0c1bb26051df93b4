"""The memory that is available."""

import contextlib
from pathlib import Path

import psutil

from cl.runtime.cores import folders


def available(root: Path = Path("/sys/fs/cgroup"), members: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that new processes may use: what the machine or this process's control groups have left."""
    allowed = [psutil.virtual_memory().available]
    for folder in folders(root, members):
        with contextlib.suppress(OSError, ValueError):  # no limit
            allowed.append(_number(folder / "memory.max") - _number(folder / "memory.current"))
    return min(allowed)


def _number(file: Path) -> int:
    return int(file.read_text())
