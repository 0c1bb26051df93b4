"""Training beats the untrained encoder, over three seeds and at the embedded data set's full size."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.combinations import methods
from pipeline.composition.compose import write

SEEDS = (0, 1, 2)
MARGIN = 5  # points of kNN (k = 20) above the untrained encoder


@pytest.fixture(scope="module")
def prepared(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with its shards, and the weights to start from: none."""
    folder = tmp_path_factory.mktemp("learning") / "project"
    shutil.copytree(project, folder)
    stage(folder, "prepare")
    stage(folder, "weights")
    return folder


@pytest.fixture(scope="module")
def random(prepared: Path) -> dict[int, dict[str, float]]:
    """What the untrained encoder of each seed reaches."""
    found = {}
    for seed in SEEDS:
        write(prepared / "params.yaml", [f"seed={seed}", "evaluation=[knn,linear]", "baseline=[random]"])
        stage(prepared, "baseline", "random")
        found[seed] = json.loads((prepared / "results/baseline/random.json").read_text())
    return found


def stage(folder: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", f"pipeline.{arguments[0]}", *arguments[1:]],
        cwd=folder,
        env=os.environ,
        check=True,
    )


def trained(folder: Path, evaluations: list[str], *overrides: str) -> dict[str, float]:
    """The metrics of a pretraining with these parameters."""
    write(folder / "params.yaml", [*overrides, f"evaluation=[{','.join(evaluations)}]", "baseline=[random]"])
    stage(folder, "pretrain")
    metrics: dict[str, float] = {}
    for name in evaluations:
        stage(folder, "evaluate", name)
        metrics |= json.loads((folder / f"results/evaluate/{name}.json").read_text())
    return metrics


@pytest.mark.slow
def test_the_default_experiment_beats_the_random_encoder(prepared, random) -> None:
    """By 12 points of kNN and 4 points of linear top-1, each the mean over the seeds."""
    gains: dict[str, list[float]] = {"knn_top1": [], "linear_top1": []}
    for seed in SEEDS:
        found = trained(prepared, ["knn", "linear"], f"seed={seed}")
        print(f"seed {seed}: {found}, random {random[seed]}")
        for name, differences in gains.items():
            differences.append(found[name] - random[seed][f"random_{name}"])
        assert random[seed]["random_knn_pixels_top1"] < found["knn_top1"]
    assert sum(gains["knn_top1"]) / 3 >= 12
    assert sum(gains["linear_top1"]) / 3 >= 4


@pytest.mark.slow
def test_the_default_experiment_finds_more_objects_than_the_random_encoder(prepared) -> None:
    """By 8 points of AP50 of VOC's protocol on the embedded scenes, the mean over the seeds."""
    gains = []
    for seed in SEEDS:
        trained(prepared, [], f"seed={seed}", "transfer=[voc_c4]", "baselines.random.transfers=all")
        found = {}
        for name, *arguments in (("transfer", "voc_c4"), ("baseline", "random")):
            stage(prepared, name, *arguments)
            found |= json.loads((prepared / f"results/{name}/{arguments[0]}.json").read_text())
        print(f"seed {seed}: {found}")
        gains.append(found["voc_c4_ap50"] - found["random_voc_c4_ap50"])
    assert sum(gains) / 3 >= 8


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in methods() if name != "distill"])
def test_every_method_beats_the_random_encoder(prepared, method) -> None:
    """As `dvc exp run -S method=...` trains it, for minutes on two cores; the mean over the seeds.

    The random encoder is the method's own, which for CMC are two networks. The teacher of distillation would
    be downloaded.
    """
    gains = []
    for seed in SEEDS:
        found = trained(prepared, ["knn"], f"method={method}", f"seed={seed}")
        stage(prepared, "baseline", "random")
        untrained = json.loads((prepared / "results/baseline/random.json").read_text())
        gains.append(found["knn_top1"] - untrained["random_knn_top1"])
        print(f"{method}, seed {seed}: {found['knn_top1']}, {gains[-1]:+.1f} against the untrained encoder")
    assert sum(gains) / len(gains) >= MARGIN
