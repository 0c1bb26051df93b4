"""The embedded run learns: over three seeds, at full size, against the random encoder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.compose import compose


@pytest.mark.slow
def test_pretraining_beats_the_random_encoder(project, tmp_path) -> None:
    """By 12 points of kNN (k = 20) and 4 points of linear top-1, each the mean over seeds 0, 1, 2."""
    gains: dict[str, list[float]] = {"knn_top1": [], "linear_top1": []}
    for seed in range(3):
        folder = tmp_path / str(seed)
        shutil.copytree(project, folder)
        compose(folder / "params.yaml", [f"seed={seed}", "evaluation=[knn,linear]", "baseline=[random]"])
        for stage in ("prepare", "pretrain", "evaluate knn", "evaluate linear", "baseline random"):
            name, *argument = stage.split()
            subprocess.run([sys.executable, "-m", f"pipeline.{name}", *argument], cwd=folder, env=os.environ, check=True)
        random = metrics(folder, "baseline/random")
        pretrained = metrics(folder, "evaluate/knn") | metrics(folder, "evaluate/linear")
        print(f"seed {seed}: pretrained {pretrained}, random {random}")
        for name, differences in gains.items():
            differences.append(pretrained[name] - random[f"random_{name}"])
        assert random["random_knn_pixels_top1"] < pretrained["knn_top1"]
    assert sum(gains["knn_top1"]) / 3 >= 12
    assert sum(gains["linear_top1"]) / 3 >= 4


def metrics(folder: Path, name: str) -> dict[str, float]:
    return json.loads((folder / "results" / f"{name}.json").read_text())
