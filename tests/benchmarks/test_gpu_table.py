"""The table of printed numbers on a GPU: its rows compose, and a run that is cut off continues exactly."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from benchmarks.gpu import table, table_page, table_runs
from benchmarks.gpu.table_page import REHEARSAL, TITLES, Result
from cl.config import read
from pipeline.composition.compose import compose
from tests.support.project import ROOT
from tests.support.training import newest_step

BACKBONE = Path(f"{REHEARSAL}-0/models/backbone.safetensors")


@pytest.mark.parametrize("name", table_page.known())
def test_a_row_composes_and_measures_what_its_run_gives(name: str) -> None:
    row = table_page.known()[name]
    composed = compose([*row.overrides, "seed=1"])
    assert row.measure in ("step", "images_per_second") or any(
        row.measure.startswith(f"{evaluation}_") for evaluation in composed["evaluations"]
    )


def test_its_stages_make_all_that_they_read() -> None:
    stages = {name: stage.get("do", stage) for name, stage in read(ROOT / "dvc.yaml")["stages"].items()}
    made = {out: name for name, stage in stages.items() for out in map(str, stage.get("outs", []))}
    for stage in ("pretrain", "evaluate"):
        assert {made[file] for file in stages[stage]["deps"] if file in made} <= {*table_runs.STAGES}


def measure(state: Path, seconds: float = 600.0, commit: str = "first") -> None:
    table_runs.measure(REHEARSAL, (), time.monotonic() + seconds, state, state / "to", commit)


def stop_once_saved(state: Path) -> None:
    while not newest_step(state):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_run_that_is_cut_off_gives_the_row_of_an_uncut_one(tmp_path: Path, monkeypatch) -> None:
    """Once by a signal, once because its minutes are over."""
    monkeypatch.setenv("CL_CHECKPOINT_SECONDS", "0.01")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    threading.Thread(target=stop_once_saved, args=(cut,), daemon=True).start()
    for code, seconds in ((128 + signal.SIGTERM, 600), (75, 0.5)):
        with pytest.raises(SystemExit) as stopped:
            measure(cut, seconds)
        assert stopped.value.code == code
        assert newest_step(cut)
        assert not table_page.read(cut / "to")
    measure(cut, commit="second")
    measure(whole)
    results = [table_page.read(state / "to") for state in (whole, cut)]
    assert results[0][0].value == results[1][0].value
    assert [each[0].made_with.count("; ") for each in results] == [0, 1]
    assert re.search("first.*; .*second", results[1][0].made_with)
    weights, others = (load_file(state / BACKBONE) for state in (whole, cut))
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_the_page_has_a_line_for_each_row_and_keeps_its_head(tmp_path: Path) -> None:
    page = tmp_path / "gpu_table.md"
    page.write_text(f"# By hand\n\n{TITLES}\nold\n")
    for seed, value in ((0, 84.0), (1, 85.0)):
        table_page.add(tmp_path, Result("cifar10_dcl", seed, value, 1e4, 12_345.6, 2e4, "a card"))
    table_page.add(tmp_path, Result("step_eager", 0, 1.3e4, None, 0.01947, 1.3e4, "a card"))
    text = page.read_text()
    assert text.startswith(f"# By hand\n\n{TITLES}\n|---")
    assert "old" not in text
    step, line = [line for line in text.splitlines() if line.startswith("| `")]
    assert "| 0.01947 |" in step
    assert "| 84.5 | [78.1, 90.9] | +0.3 | 2 of 5 | 12,346 | 20,000 | a card |" in line
    assert line.count("|") == TITLES.count("|")
    assert f"Not yet run: {len(table_page.known()) - 3} rows." in text


def test_without_a_gpu_a_row_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = CliRunner().invoke(table.main, ["cifar10_dcl", "--state", str(tmp_path)])
    assert result.exit_code == 1
    assert "no GPU is visible" in result.output
    result = CliRunner().invoke(table.main, ["cifar10_dlc", "--state", str(tmp_path)])
    assert "did you mean cifar10_dcl" in result.output


def test_missing_packages_are_named(tmp_path: Path, monkeypatch) -> None:
    assert table.missing() == []
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(
        """[project]
dependencies = ["click>=8", "no-such-package>=2", "only-elsewhere; sys_platform == 'none'"]
optional-dependencies = {pipeline = ["nor-this"]}
"""
    )
    assert table.missing() == ["'no-such-package>=2'", "'nor-this'"]
