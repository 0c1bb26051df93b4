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
    for limits, expected in (([], 16), ([2.5, 64.0], 2), ([0.5], 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
        monkeypatch.setattr(cores, "quotas", lambda limits=limits: limits)
        assert cores.cores() == expected
