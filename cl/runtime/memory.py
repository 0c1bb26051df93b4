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
            most, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            allowed.append(most - used)
    return min(allowed)
