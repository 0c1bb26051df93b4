"""The memory that is available."""

import contextlib
from pathlib import Path

import psutil

from cl.runtime.cores import folders

# Of control groups: the files of the limit and the use, and memory.stat's sizes of the cache of files.
VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file", "total_inactive_file"
VERSION_2 = "memory.max", "memory.current", "active_file", "inactive_file"


def available(root: Path = Path("/sys/fs/cgroup"), members: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that new processes may use: what the machine or this process's control groups have left.

    The cache of files is available: the kernel drops it where memory is needed.
    """
    allowed = [psutil.virtual_memory().available]
    for controller, (limit, use, *cache) in (("memory", VERSION_1), ("", VERSION_2)):
        for folder in folders(root / controller, members, controller):
            with contextlib.suppress(OSError, ValueError):  # no limit
                most, used = (int((folder / name).read_text()) for name in (limit, use))
                stat = folder / "memory.stat"
                rows = map(str.split, stat.read_text().splitlines() if stat.exists() else [])
                allowed.append(most - used + sum(int(size) for name, size in rows if name in cache))
    return min(allowed)
