"""Measures of collapse against loops of their definitions, at their limits and at the alarm's thresholds."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.pretraining import collapse


def directions(n: int, width: int, used: int | None = None) -> Tensor:
    """Random directions (n, width) within the first `used` coordinates."""
    x = torch.zeros(n, width)
    x[:, :used] = torch.randn(n, used or width, generator=torch.Generator().manual_seed(0))
    return F.normalize(x, dim=1)


def loops(x: Tensor) -> dict[str, float]:
    """The three definitions in plain numbers."""
    n, width = x.shape
    rows = x.double().tolist()
    pairs = [
        math.exp(-2 * math.dist(a, b) ** 2) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j
    ]
    deviations = []
    for column in zip(*rows, strict=True):
        mean = sum(column) / n
        deviations.append(math.sqrt(sum((value - mean) ** 2 for value in column) / n))
    squares = torch.linalg.eigvalsh(x.double().T @ x.double()).clamp(min=0).tolist()
    values = [math.sqrt(square) for square in squares]
    shares = [value / sum(values) for value in values]
    return {
        "uniformity": math.log(sum(pairs) / len(pairs)),
        "embedding_std": sum(deviations) / width * math.sqrt(width),
        "effective_rank": math.exp(-sum(share * math.log(share) for share in shares if share > 0)),
    }


@pytest.mark.parametrize("block", [1, 100, 10**6])
@pytest.mark.parametrize("shape", [(2, 3), (50, 8), (8, 50)])
def test_measures_equal_their_definitions(monkeypatch, block, shape) -> None:
    """With embeddings that lean to one side, in blocks of one row, a few and all."""
    monkeypatch.setattr(collapse, "BLOCK", block)
    x = F.normalize(directions(*shape) + torch.linspace(0, 0.5, shape[1]), dim=1)
    assert collapse.measures(x) == pytest.approx(loops(x), rel=1e-4)


@pytest.mark.parametrize(
    ("std", "rank", "width", "told"),
    [
        (0.019, 50.0, 128, "complete collapse"),
        (0.021, 50.0, 128, None),
        (0.5, 1.9, 128, "dimensional collapse"),
        (0.5, 2.1, 128, None),
        (0.5, 20.4, 2048, "dimensional collapse"),
        (0.5, 20.6, 2048, None),
        (0.01, 1.0, 128, "complete collapse"),
    ],
)
def test_the_alarm_says_what_was_found_and_what_was_expected(std, rank, width, told) -> None:
    said = collapse.alarm({"uniformity": -2.0, "embedding_std": std, "effective_rank": rank}, width)
    assert (said is None) == (told is None)
    if said:
        assert told in said
        assert (
            f"embedding_std is {std:.3f}" if told.startswith("complete") else f"effective_rank is {rank:.1f}"
        ) in said
        assert "expected" in said
        assert "optim.base_lr" in said


@pytest.mark.parametrize("images", [2, 5, 20, 60])
def test_few_images_that_are_spread_evenly_are_not_called_collapsed(images) -> None:
    """Their effective rank is at most their number, whatever the width; a collapse of them is still found."""
    spread = F.normalize(torch.randn(images, 2048, generator=torch.Generator().manual_seed(0)), dim=1)
    assert collapse.alarm(collapse.measures(spread), 2048, images) is None
    equal = spread[:1].repeat(images, 1)
    assert "complete collapse" in collapse.alarm(collapse.measures(equal), 2048, images)


@pytest.mark.parametrize("rank", [1.0, 50.0])
def test_the_advice_fits_the_method(rank) -> None:
    """One with negatives is not told to choose one."""
    measures = {"embedding_std": 0.001 if rank > 1 else 0.5, "effective_rank": rank}
    with_negatives, without = (collapse.alarm(measures, 128, negatives=value) for value in (True, False))
    assert "choose a method and loss with negatives" in without
    assert "negatives" not in with_negatives
    assert "augmentation" in with_negatives


def test_embeddings_that_are_not_finite_end_the_training() -> None:
    with pytest.raises(FloatingPointError, match="lower optim.base_lr"):
        collapse.measures(torch.full((3, 2), math.nan))
