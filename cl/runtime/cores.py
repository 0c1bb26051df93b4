"""How many cores there are to use."""

import os
from collections.abc import Iterator
from pathlib import Path


def cores() -> int:
    """The cores that this process may use, which on a cluster or in a container are not all of the machine's."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *quotas()])))


def quotas(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[float]:
    """The limits, in cores, of this process's control groups (version 2), as Docker's --cpus and Kubernetes set them."""
    paths = [line.removeprefix("0::/") for line in _text(own).splitlines() if line.startswith("0::/")]
    for folder in {group for path in paths for group in ((groups / path), *(groups / path).parents)}:
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdecimal():
            yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
