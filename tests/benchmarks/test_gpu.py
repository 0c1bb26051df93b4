"""The GPU benchmarks: on a GPU every check passes; without one they say so, and run at a tiny size."""

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.gpu import check, speed

STAGES = ("ranks", "resume")  # these parts start stages, which takes long
PARTS = [
    pytest.param(program, part, id=f"{name} {part}", marks=[pytest.mark.slow] if part in STAGES else [])
    for name, program in (("check", check), ("speed", speed))
    for part in program.PARTS
]


def run(program: click.Command, *arguments: str) -> str:
    result = CliRunner().invoke(program, arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("program", [check, speed], ids=["check", "speed"])
def test_without_a_gpu_they_say_that_they_need_one(program) -> None:
    result = CliRunner().invoke(program.main)
    assert result.exit_code == 1
    expected = "Error: this needs a CUDA GPU, and PyTorch finds none; --device cpu only tries the program\n"
    assert result.output == expected


@pytest.mark.parametrize(("program", "part"), PARTS)
def test_every_part_runs_at_a_tiny_size_on_a_cpu(program, part: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    results = tmp_path / "results.jsonl"
    printed = run(program.main, "--device", "cpu", "--output", str(results), part)
    assert printed.startswith("no GPU: all sizes are tiny, and the figures say nothing\n")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "", "a GPU would be used"
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert rows
    assert {(row["part"], row["device"]) for row in rows} == {(part, "cpu")}
    if program is check:
        assert all(row["passed"] is not False for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("part", check.PARTS)
def test_results_on_a_gpu_are_those_of_the_cpu(part: str) -> None:
    """Methods, losses, batch norm, log-partition, augmentation, the loop, exact resume, and two processes."""
    run(check.main, part)
