"""The number of CPU cores available."""

import os
from collections.abc import Iterator
from pathlib import Path


def cores() -> int:
    """The cores this process may use: on a cluster or in a container fewer than the machine has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *quotas()])))


def quotas(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[float]:
    """Limits, in cores, of this process's control groups (version 2), as set by Docker and Kubernetes."""
    for folder in folders(groups, own):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdecimal():
            yield int(quota) / int(period)


def folders(groups: Path, own: Path) -> set[Path]:
    """The folders of this process's control groups, and those above them, which limit it too."""
    lines = _text(own).splitlines()
    members = [groups / line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    return {folder for group in members for folder in (group, *group.parents)}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
