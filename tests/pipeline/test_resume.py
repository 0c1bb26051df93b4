"""A pretraining that is killed and run again ends with the same bits: with columns, and with a teacher."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from cl import config
from cl.runtime.registry import module_of
from cl.shards import writing
from pipeline.composition.compose import write
from tests.support.distilling import SETTINGS, saved
from tests.support.pictures import picture_file
from tests.support.stages import Stage, answers, start
from tests.support.training import assert_same_bits, models, newest_step

CHANGED = ("method", "optim.epochs", "optim.batch_size")
USUAL = [each for each in SETTINGS if not each.startswith(CHANGED)]
USUAL += ["optim.epochs=4", "optim.batch_size=16"]
COLUMNS = ["dataset=table", "dataset.labels=none", "dataset.positive=bird", "dataset.within=site"]
COLUMNS += ["dataset.shard_images=20", "method=simclr", "loss=infonce"]


def with_columns(folder: Path) -> list[str]:
    """Shards of 20 birds at two sites; the parameters."""
    rows = ["path,bird,site"]
    for number in range(80):
        picture_file(folder / f"own/{number}.png", number)
        rows.append(f"{number}.png,{number // 4},{number // 4 % 2}")
    (folder / "own/images.csv").write_text("\n".join(rows))
    settings = [*USUAL, *COLUMNS, f"dataset.name={folder / 'own'}"]
    write(folder / "params.yaml", settings)
    dataset = config.load(folder / "params.yaml").dataset
    shutil.rmtree(folder / "data/shards")
    splits = module_of("sources", "table").splits(dataset, folder)
    writing.write(splits, "table", dataset, folder / "data/shards")
    return settings


def with_a_teacher(folder: Path) -> list[str]:
    settings = ["method=distill", "method.queue=64", f"teacher={saved(folder / 'large.safetensors')}"]
    return [*USUAL, *settings]


@pytest.mark.parametrize("settings", [with_columns, with_a_teacher])
def test_a_killed_run_ends_with_the_same_bits(settings, project_with_shards, tmp_path) -> None:
    folder = Path(shutil.copytree(project_with_shards, tmp_path / "project"))
    write(folder / "params.yaml", settings(folder))
    scratch = tmp_path / "killed"
    stages = [Stage((name,), {"CL_SCRATCH": str(tmp_path / "whole")}) for name in ("weights", "pretrain")]
    for answer in answers(folder, stages):
        assert answer.code == 0, answer.stderr
    expected = models(folder)
    stage = Stage(("pretrain",), {"CL_SCRATCH": str(scratch), "CL_CHECKPOINT_SECONDS": "0"})
    process = start(folder, stage)
    while newest_step(scratch) < 3 and process.is_alive():
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (answer,) = answers(folder, [stage])
    assert answer.code == 0 and "continuing after step" in answer.stderr, answer.stderr
    assert_same_bits(models(folder), expected)
