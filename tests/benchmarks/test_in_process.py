"""Whole runs in this process."""

from pathlib import Path

import pytest

from benchmarks import in_process
from cl import analyses, config
from cl.analyses import gradient_norm
from cl.data.reader import Reader
from tests.support.clone import KNN
from tests.support.project import compose


def test_a_run_has_the_numbers_of_the_stages(shard_folder: Path, tmp_path: Path, monkeypatch) -> None:
    """The analysis sees the method of the epochs that `keep_every` names, and not the last one twice."""
    contexts: list[analyses.AnalysisContext] = []

    def analyze(settings: gradient_norm.Config, context: analyses.AnalysisContext) -> dict[str, float]:
        contexts.append(context)
        assert all(path.is_file() for path in context.kept.values())
        return {"margin_ratio": 1.0, "plain_ratio": 0.5, "bound_ratio": 0.25}

    monkeypatch.setattr(gradient_norm, "analyze", analyze)
    overrides = [*KNN, "method=moco_v2", "analysis=[gradient_norm]", "backbone.name=resnet10"]
    overrides += ["backbone.width=0.125", "optim.batch_size=64", "optim.epochs=3", "optim.keep_every=1"]
    params = config.check(compose(tmp_path, *overrides))
    metrics, seconds = in_process.run(params, [Reader(shard_folder, split) for split in ("train", "val")])
    assert contexts[0].kept.keys() == {1, 2}
    assert contexts[0].epochs[-1]["epoch"] == 3
    assert seconds > 0
    assert metrics.keys() == {
        "knn_top1",
        "knn_embedding_top1",
        "gradient_norm_margin_ratio",
        "gradient_norm_plain_ratio",
        "gradient_norm_bound_ratio",
    }
    assert metrics["gradient_norm_plain_ratio"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["init=torchvision:resnet18"], "init is for DVC's stages; here, remove it"),
        (
            ["method=distill", "loss=cosine", "teacher=torchvision:resnet18"],
            "a teacher, and seeds of an evaluation, are",
        ),
        (
            ["evaluation=[linear]", "evaluations.linear.seeds=[0,1]"],
            "a teacher, and seeds of an evaluation, are",
        ),
    ],
)
def test_what_only_stages_can_do_is_refused(overrides, message, shard_folder: Path, tmp_path: Path) -> None:
    params = config.check(compose(tmp_path, *overrides))
    with pytest.raises(ValueError, match=message):
        in_process.run(params, [Reader(shard_folder, split) for split in ("train", "val")])
