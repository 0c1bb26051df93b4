"""Measures of collapse against loops of their definitions, at their limits and at the alarm's thresholds.

The verdict on a run from its log, on rows made by hand and on those of real runs.
"""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.pretraining import collapse
from cl.pretraining.collapse import verdict
from tests.support.files import read_csv


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


WIDTH = 128


def rows(ranks: list[float], stds: list[float] | None = None, first: int = 1) -> list[dict[str, float]]:
    """Rows of epochs with these effective ranks and standard deviations of the embeddings."""
    found = zip(ranks, stds or [0.9] * len(ranks), strict=True)
    return [
        {"epoch": first + place, "effective_rank": rank, "embedding_std": std}
        for place, (rank, std) in enumerate(found)
    ]


RISING = [10.0 + epoch for epoch in range(20)]
FLAT = [10.0 + min(epoch, 10) + epoch % 2 for epoch in range(20)]


def test_a_rank_that_rises_at_the_end_is_still_improving() -> None:
    found = verdict(rows(RISING), WIDTH)
    assert found.state == "still improving"
    assert "still improving at epoch 20" in found.sentence
    assert "-S optim.epochs=40" in found.sentence
    continued = verdict(rows(RISING, first=31), WIDTH).sentence
    assert "epoch 50" in continued
    assert "-S optim.epochs=40" in continued, "twice this run's epochs, not those before it"


@pytest.mark.parametrize("ranks", [FLAT, RISING[::-1], [12.0] * 20])
def test_a_rank_that_does_not_rise_at_the_end_is_finished(ranks) -> None:
    found = verdict(rows(ranks), WIDTH)
    assert found.state == "finished"
    assert "no more dimensions" in found.sentence


def test_only_the_last_quarter_counts() -> None:
    assert verdict(rows([*RISING, *[30.0, 29.0] * 4]), WIDTH).state == "finished"
    assert verdict(rows([*RISING[::-1], *range(10, 18)]), WIDTH).state == "still improving"


def test_a_trend_tolerates_one_pair_of_neighbours_in_the_wrong_order() -> None:
    """Of five epochs, one pair may be in the wrong order (p = 0.042), two may not (p = 0.117)."""
    assert verdict(rows([10, 11, 12, 14, 13]), WIDTH).state == "still improving"
    assert verdict(rows([10, 11, 14, 12, 13]), WIDTH).state == "finished"


@pytest.mark.parametrize(
    ("ranks", "stds"),
    [
        ([20.0] * 6 + [1.5] * 4, [0.9] * 10),  # nearly on a line
        ([20.0] * 10, [0.9] * 6 + [0.001] * 4),  # nearly a point
    ],
)
def test_a_collapse_names_its_first_epoch(ranks, stds) -> None:
    found = verdict(rows(ranks, stds, first=31), WIDTH)
    assert found.state == "collapsed"
    assert found.sentence.startswith("the embeddings collapsed in epoch 37 and did not recover; lower")


def test_a_run_that_starts_at_one_point_and_leaves_it_has_not_collapsed() -> None:
    """As untrained encoders do; a collapse counts only if it lasts to the end, whatever came before."""
    recovered = verdict(rows([1.2, 1.1, *RISING], [0.01, 0.01, *[0.9] * 20]), WIDTH)
    assert recovered.state == "still improving"
    again = verdict(rows([1.2, *RISING, 1.3, 1.2], [0.01, *[0.9] * 20, 0.01, 0.01]), WIDTH)
    assert again.state == "collapsed"


@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_few_epochs_show_neither_a_trend_nor_a_lasting_collapse(epochs) -> None:
    found, collapsed = (verdict(rows(ranks), WIDTH) for ranks in (RISING[:epochs], [1.0] * epochs))
    assert found.state == collapsed.state == "unknown"
    assert found.sentence == collapsed.sentence
    assert "at least 5 epochs" in found.sentence
    assert verdict(rows([1.0] * 5), WIDTH).state == "collapsed"


def logged(run: str, epochs: int) -> list[dict[str, str]]:
    """The first epochs of a run of benchmarks/selection.py, as they are in its file."""
    return [row for row in read_csv(Path(__file__).with_name("logs.csv")) if row["run"] == run][:epochs]


@pytest.mark.parametrize(
    ("run", "epochs", "state"),
    [
        ("simclr-rate-too-large", 2, "unknown"),  # at one point, which it leaves again:
        ("simclr-rate-too-large", 7, "finished"),
        ("simclr-rate-too-large", 15, "still improving"),
        ("simsiam-rate-too-large", 15, "collapsed"),  # to few dimensions
        ("simsiam", 15, "finished"),  # whose rank falls from the second epoch on
    ],
)
def test_real_runs_get_the_verdict_that_their_curves_show(run, epochs, state) -> None:
    found = verdict(logged(run, epochs), WIDTH if run.startswith("simclr") else 512)
    assert found.state == state
