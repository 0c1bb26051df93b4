"""The GPU benchmarks: on a GPU every check passes; without one, each runs at a tiny size."""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu import day
from benchmarks.gpu.session import Session, read

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SLOW = {
    "check.ranks",
    "check.resume",
    "check.methods",
    "check.loop",
    "speed.step",
    "speed.profile",
    "speed.cropping",
}
TINY = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in day.PARTS]
CHECKS = [name for name in day.PARTS if name.startswith("check.")]


@pytest.mark.parametrize("name", TINY)
def test_every_part_runs_at_a_tiny_size_on_a_cpu(name: str, tmp_path: Path) -> None:
    day.PARTS[name](Session(CPU, tmp_path / "results.jsonl", name))
    rows = read(tmp_path / "results.jsonl")
    assert {row["part"] for row in rows} == {name}
    assert all(row["passed"] is not False for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHECKS)
def test_results_on_a_gpu_are_those_of_the_cpu(name: str) -> None:
    """Methods, losses, batch norm, log-partition, augmentation, the loop, exact resume, and two processes."""
    rows = day.run({name: day.PARTS[name]}, CUDA, 3600)
    assert rows
    assert [row for row in rows if row["passed"] is False] == []
