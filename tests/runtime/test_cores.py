"""The cores that a process may use."""

import os
from pathlib import Path

import pytest

from cl.runtime import cores


def test_a_container_has_the_cores_of_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    (groups / "pods/one").mkdir(parents=True)
    assert list(cores.quotas(groups, own)) == [], "no cgroups"
    own.write_text("1:cpu:/other\n0::/pods/one\n")
    (groups / "pods/one/cpu.max").write_text("max 100000\n")
    assert list(cores.quotas(groups, own)) == []
    (groups / "pods/cpu.max").write_text("250000 100000\n")
    (groups / "pods/one/cpu.max").write_text("50000 100000\n")
    assert sorted(cores.quotas(groups, own)) == [0.5, 2.5]
    (groups / "cpu/other").mkdir(parents=True)
    (groups / "cpu/other/cpu.cfs_period_us").write_text("100000\n")
    (groups / "cpu/other/cpu.cfs_quota_us").write_text("-1\n")
    assert sorted(cores.quotas(groups, own)) == [0.5, 2.5]
    (groups / "cpu/other/cpu.cfs_quota_us").write_text("150000\n")
    assert sorted(cores.quotas(groups, own)) == [0.5, 1.5, 2.5], "version 1"
    own.write_text("4:cpuacct,cpu:/a/path/outside/the/container\n")
    (groups / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (groups / "cpu/cpu.cfs_quota_us").write_text("300000\n")
    assert list(cores.quotas(groups, own)) == [3.0], "version 1, as a container sees it"
    for limits, expected in (([], 16), ([2.5, 64.0], 2), ([0.5], 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
        monkeypatch.setattr(cores, "quotas", lambda limits=limits: limits)
        assert cores.cores() == expected


@pytest.mark.parametrize(("asked", "wanted", "given"), [("", 7, 7), ("3", 7, 3), ("9", 7, 7), ("3", 0, 1)])
def test_workers_can_be_limited(asked: str, wanted: int, given: int, monkeypatch) -> None:
    monkeypatch.setenv("CL_WORKERS", asked)
    assert cores.workers(wanted) == given


@pytest.mark.parametrize("asked", ["0", "-1", "many"])
def test_a_wrong_number_of_workers_is_named(asked: str, monkeypatch) -> None:
    monkeypatch.setenv("CL_WORKERS", asked)
    with pytest.raises(ValueError, match=f"CL_WORKERS={asked}"):
        cores.workers(7)
