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


def workers(wanted: int) -> int:
    """At least one and at most `wanted` processes beside this one, and at most CL_WORKERS."""
    return max(1, min(wanted, asked_number("CL_WORKERS") or wanted))


def asked_number(variable: str) -> int | None:
    """The number of processes that an environment variable asks for; None if it is not set."""
    asked = os.environ.get(variable)
    if asked and not (asked.isdecimal() and int(asked)):
        raise ValueError(f"{variable}={asked}: give a number of processes, such as 2")
    return int(asked) if asked else None


def quotas(root: Path = Path("/sys/fs/cgroup"), members: Path = Path("/proc/self/cgroup")) -> Iterator[float]:
    """Limits, in cores, of this process's control groups, as set by Docker and Kubernetes."""
    limits = [_text(folder / "cpu.max").partition(" ")[::2] for folder in folders(root, members)]
    for folder in folders(root / "cpu", members, "cpu"):  # version 1
        limits.append((_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")))
    for quota, period in limits:
        if quota.strip().isdecimal():
            yield int(quota) / int(period)


def folders(root: Path, members: Path, controller: str = "") -> set[Path]:
    """The folders of this process's control groups and their parents, which limit it too.

    root: where the control groups are mounted. members: the file that lists this process's.
    controller: of version 1; by default, the groups of version 2.
    """
    lines = [line.split(":", 2) for line in _text(members).splitlines()]
    innermost = [root / path.lstrip("/") for _, names, path in lines if controller in names.split(",")]
    return {folder for inner in innermost for folder in (inner, *inner.parents)}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
