"""The GPU benchmarks: on a GPU every check passes; without one they say so, and run at a tiny size."""

import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

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
PAGE = "# Page\n\nBy hand.\n\n## Measured\n\nold\n\n### old\n\n## Next\n\nBy hand, too.\n"


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


def right(session: Session) -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    session.report("two", True, error=0.5)


def wrong(session: Session) -> None:
    raise RuntimeError("first line\nsecond line")


@pytest.mark.parametrize(("part", "code"), [(right, 0), (wrong, 1)])
def test_without_a_gpu_it_says_so_and_writes_a_page_only_if_asked(part, code, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(day, "PARTS", {"check.part": part})
    monkeypatch.setattr(day, "PAGE", tmp_path / "unasked.md")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for arguments in ([], ["--to", str(page)]):
        result = CliRunner().invoke(day.main, ["--minutes", "1", *arguments])
        assert result.exit_code == code, result.output
        assert result.output.startswith("no GPU: this only tries itself at a tiny size on the CPU")
    assert not (tmp_path / "unasked.md").exists()
    text = page.read_text()
    assert f"| check.part | {1 - code} | {code} |" in text
    assert text.startswith("# Page\n\nBy hand.\n\n## Measured\n\nWritten by")
    assert text.endswith("\n\n## Next\n\nBy hand, too.\n")
    assert "old" not in text
