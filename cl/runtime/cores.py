"""The number of CPU cores available."""

import os
from collections.abc import Iterator
from pathlib import Path


def cores() -> int:
    """The cores this process may use; on a cluster or in a container, fewer than the machine has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *quotas()])))


def share_of_cores() -> int:
    """The cores of this process, if LOCAL_WORLD_SIZE processes run on the machine."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def quotas(root: Path = Path("/sys/fs/cgroup"), members: Path = Path("/proc/self/cgroup")) -> Iterator[float]:
    """Limits, in cores, of this process's control groups (version 2), as set by Docker and Kubernetes."""
    for folder in folders(root, members):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdecimal():
            yield int(quota) / int(period)


def folders(root: Path, members: Path) -> set[Path]:
    """The folders of this process's control groups and their parents, which limit it too.

    root: where the control groups are mounted. members: the file that lists this process's.
    """
    lines = _text(members).splitlines()
    innermost = [root / line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    return {folder for inner in innermost for folder in (inner, *inner.parents)}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
