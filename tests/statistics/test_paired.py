"""Paired intervals: against independent tests, what must not matter, and how often they are wrong."""

from itertools import product

import numpy as np
import pytest

from cl.features.correctness import correctness
from cl.statistics import PairedComparison, interval_of_halves, judge, means_of_halves


def scores(differences: np.ndarray) -> dict[str, np.ndarray]:
    """One measure with these differences in points."""
    return {"measure": 50 + np.stack([-differences / 2, differences / 2], 1)}


def rejects(differences: np.ndarray, sizes: np.ndarray, shift: float) -> bool:
    """Whether random signs reject the true difference `shift`: all signs are tried, and ties count half."""
    sums = differences - shift * sizes
    signed = np.array([signs @ sums for signs in product((-1, 1), repeat=len(sums))])
    larger = (signed > sums.sum() + 1e-9).mean() + (abs(signed - sums.sum()) <= 1e-9).mean() / 2
    return bool(min(larger, 1 - larger) < 0.025)


@pytest.mark.parametrize("sizes", [np.ones(11), np.arange(1.0, 12)])
def test_an_interval_contains_what_random_signs_do_not_reject(sizes) -> None:
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(11), sizes.astype(int))
    differences = rng.normal(3, 10, len(group))
    sums = np.bincount(group, differences)
    low, high = interval_of_halves(means_of_halves(differences[:, None], group, seed=0)[:, 0])
    width = high - low
    for end, outside in ((low, -0.03), (high, 0.03)):  # the ends come from 10,000 of 2,047 halves
        assert rejects(sums, sizes, end + outside * width)
        assert not rejects(sums, sizes, end - outside * width)


def test_an_interval_that_ends_at_zero_is_not_printed_as_minus_zero() -> None:
    assert str(interval_of_halves(np.array([-3.0, 0.0, 0.0]))) == "(-3.0, 0.0)"


def test_an_interval_of_many_images_is_that_of_a_bootstrap() -> None:
    rng = np.random.default_rng(0)
    differences = rng.choice([0.0, 100, -100, 30], 9000, p=[0.8, 0.1, 0.05, 0.05])
    row = judge(scores(differences)).overall  # more images than are halved one by one
    means = [differences[rng.integers(0, 9000, 9000)].mean() for _ in range(4000)]
    assert (row.low, row.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.06)
    assert row.difference == pytest.approx(differences.mean())
    assert judge(scores(differences)).detectable == pytest.approx(2.8 * np.std(means), rel=0.05)


@pytest.mark.parametrize("case", ["images", "groups", "sum of 0", "symmetric"])
@pytest.mark.parametrize("seed", range(10))
def test_neither_the_order_of_images_nor_which_encoder_comes_first_matters(seed, case) -> None:
    rng = np.random.default_rng(seed)
    each = {name: rng.choice([0.0, 100], (300, 2)) for name in ("x", "y")}
    if case == "sum of 0":
        each = scores(np.repeat([100.0, -50, 0], [10, 20, 270]))
    if case == "symmetric":
        each = scores(np.repeat([100.0, -100, 0], [20, 20, 260]))
    order, groups = rng.permutation(300), rng.integers(0, 80, 300) if case == "groups" else None
    found = judge(each, groups)
    shuffled = {name: rows[order] for name, rows in each.items()}
    assert judge(shuffled, groups if groups is None else groups[order]) == found
    other = judge({name: rows[:, ::-1] for name, rows in each.items()}, groups)
    assert other.detectable == found.detectable
    for row, mirrored in zip(found.rows, other.rows, strict=True):
        assert (mirrored.a, mirrored.b) == (row.b, row.a)
        assert (mirrored.difference, mirrored.low, mirrored.high) == (-row.difference, -row.high, -row.low)


def test_pairs_narrow_and_groups_widen() -> None:
    rng = np.random.default_rng(0)
    a = rng.choice([0.0, 100], 300)
    b = np.where(rng.random(300) < 0.3, 100 - a, a)
    groups, five = np.arange(60).repeat(5), np.arange(300) // 5 * 5
    cases = ((a, b, None), (a, b, groups), (a, rng.permutation(b), None), (a[five], b[five], None))
    widths = []
    for x, y, each in (*cases, (a[five], b[five], groups)):
        row = judge({"measure": np.stack([x, y], 1)}, each).overall
        widths.append(row.high - row.low)
    paired, independent_groups, unpaired, copies, groups_of_copies = widths
    assert independent_groups == pytest.approx(paired, rel=0.25)
    assert unpaired > 1.2 * paired
    assert groups_of_copies == pytest.approx(copies * 5**0.5, rel=0.1), "five copies count as one image"


@pytest.mark.parametrize("case", ["images", "few differ", "groups"])
def test_equal_encoders_are_called_different_in_five_of_a_hundred_cases(case) -> None:
    """In 400 comparisons, 5 % are 20, with a standard deviation of 4.4."""
    wrong, times = 0, 400
    for seed in range(times):
        rng = np.random.default_rng(seed)
        groups = None
        if case == "images":
            differences = rng.choice([0.0, 20, -20, 100, -100], 60, p=[0.6, 0.15, 0.15, 0.05, 0.05])
        elif case == "few differ":
            differences = rng.permutation(np.r_[rng.choice([-100.0, 100], 12), np.zeros(48)])
        else:  # of unequal size; images of a group agree
            groups = np.repeat(np.arange(12), [60, 40, *[10] * 10])
            differences = rng.normal(size=12)[groups] * 20 + rng.normal(size=200)
        wrong += judge(scores(differences), groups, seed=seed).verdict != "cannot tell"
    assert 0.03 * times <= wrong <= 0.07 * times


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([10, 10, 10, 10, 1], "better"),
        ([10, 10, 10, 10, -1], "cannot tell"),  # one of 31 halves is below 0: 3.2 %
        ([20] * 5 + [0] * 45, "better"),  # one of 32 halves is 0 and counts half: 1.6 %
        ([20] * 4 + [0] * 46, "cannot tell"),
        ([-20] * 5 + [0] * 45, "worse"),
    ],
)
def test_the_fewest_images_that_show_a_difference(differences, verdict) -> None:
    assert judge(scores(np.array(differences, float))).verdict == verdict


def test_the_sentence_says_what_is_known() -> None:
    noise = np.random.default_rng(0).normal(size=300)
    noise = 16 * (noise - noise.mean()) / noise.std()
    for shift, groups, words in (
        (5, None, "B is better than A by 5.0 points [3.2, 6.8]"),
        (-5, None, "B is worse than A by 5.0 points [-6.8, -3.2]"),
        (0.4, None, "300 images, a difference of about 2.6 points"),
        (50, np.arange(300) % 4, "4 groups, expected at least 5"),
    ):
        assert words in judge(scores(noise + shift), groups).sentence()
    same = judge(scores(np.zeros(300)))
    assert "old is better than new: no difference on 300" in same.sentence("new", "old")
    assert [(row.difference, row.low, row.high) for row in same.rows] == [(0, 0, 0)]


def test_the_mean_of_the_measures_decides() -> None:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(["wren", "robin", "owl"], 100))
    features = np.eye(3)[np.unique(labels, return_inverse=True)[1]] + rng.normal(0, 0.3, (300, 3))
    noisy = features + rng.normal(0, 0.6, (300, 3))

    def compared(a: np.ndarray, b: np.ndarray) -> PairedComparison:
        return judge(correctness((a[:100], b[:100]), labels[:100], (a[100:], b[100:]), labels[100:]))

    found = compared(features, noisy)
    assert found.verdict == "worse"
    *rows, mean = found.rows
    assert len(rows) == 5
    assert mean.difference == pytest.approx(np.mean([row.difference for row in rows]))
    assert mean.a == pytest.approx(np.mean([row.a for row in rows]))
    same = compared(noisy, noisy)
    assert same.verdict == "cannot tell"
    assert {row.difference for row in same.rows} == {0}
