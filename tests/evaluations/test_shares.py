"""Percentages of images, and their intervals where images belong to groups."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cl.data.reader import Reader
from cl.evaluations import knn
from cl.evaluations._shared import shares
from cl.evaluations._shared.shares import classify, independent
from cl.statistics import interval


def coverage(groups: int, images: int, agreement: float, p: float, *, equal: bool) -> float:
    """How many of 2,000 samples of images have an interval that contains the true percentage.

    The rates of groups have a beta distribution, so that two images of one correlate by `agreement`.
    """
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        sizes = rng.integers(1, 2 * images, groups) if not equal else np.full(groups, images)
        rates = rng.beta(p / agreement - p, (1 - p) / agreement - (1 - p), groups) if agreement else p
        group = np.repeat(np.arange(groups), sizes)
        correct = rng.random(len(group)) < np.broadcast_to(rates, groups)[group]
        alone = np.full(len(group), -1) if not agreement else group
        found = interval(100 * correct.mean(), independent(correct.astype(float), alone))
        assert found
        hits += found.low <= 100 * p <= found.high
    return hits / 2000


@pytest.mark.parametrize(
    ("groups", "images", "agreement", "p", "equal"),
    [
        pytest.param(2000, 1, 0.0, 0.7, True, id="independent"),
        pytest.param(20, 100, 0.2, 0.6, True, id="frames of 20 videos"),
        pytest.param(50, 20, 0.1, 0.8, False, id="50 patients with 1 to 39 images"),
        pytest.param(200, 16, 0.6, 0.6, True, id="16 tiles of each image"),
        pytest.param(10, 50, 0.3, 0.5, False, id="ten groups"),
    ],
)
def test_intervals_contain_the_truth_in_93_to_97_percent_of_samples(
    groups, images, agreement, p, equal
) -> None:
    assert 0.93 <= coverage(groups, images, agreement, p, equal=equal) <= 0.97


def test_images_that_agree_within_groups_count_once_per_group() -> None:
    """Up to Student's quantile; images without a group count for themselves; one group tells nothing."""
    correct = np.tile([1.0, 0.0], 20).repeat(10)  # 40 groups of ten
    groups = np.arange(40).repeat(10)
    assert independent(correct, groups) == pytest.approx(40, rel=0.1)
    assert independent(correct, np.full(400, -1)) == 400
    assert independent(np.ones(400), groups) < 40, "all right: nothing shows how much a group agrees"
    assert independent(correct, np.zeros(400, int)) == 0
    assert interval(50.0, 0) is None


def test_groups_widen_intervals(context, params, shard_folder) -> None:
    config = params.evaluations["knn"].model_copy(update={"k": 5})
    train, val = (Reader(shard_folder, split) for split in ("train", "val"))
    alone = knn.evaluate(config, replace(context, train=train, val=val))["pixels"]
    val.groups = val.labels()
    grouped = knn.evaluate(config, replace(context, train=train, val=val))["pixels"]
    assert grouped["top1"] == alone["top1"]
    assert grouped["top1"].images < alone["top1"].images == len(val)


def test_a_classifier_works_in_blocks(monkeypatch) -> None:
    head, features = nn.Linear(6, 9), torch.randn(50, 6)
    whole = classify(head, features)
    monkeypatch.setattr(shares, "LOGITS", 9 * 7)
    blocks = classify(head, features)
    assert [x.shape for x in blocks] == [(50,), (50, 5)]
    assert all(map(torch.equal, blocks, whole))
    assert torch.equal(whole[0], head(features).argmax(1))
