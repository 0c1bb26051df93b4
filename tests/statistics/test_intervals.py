"""Intervals against a bootstrap over predictions, and over seeds against Student's."""

import numpy as np
import pytest
from scipy.stats import t

from cl.statistics import Estimate, Interval, difference, independent, interval


@pytest.mark.parametrize("images", [1000, 10_000])
@pytest.mark.parametrize("percent", [5.0, 40.0, 65.4, 90.0, 98.0])
def test_an_interval_agrees_with_a_bootstrap_over_predictions(images, percent) -> None:
    """The number that is right in a resample has a binomial distribution."""
    right = np.random.default_rng(0).binomial(images, round(images * percent / 100) / images, size=4000)
    bootstrap = np.percentile(100 * right / images, [2.5, 97.5])
    assert interval(percent, images) == pytest.approx(tuple(bootstrap), abs=0.3)


def test_seeds_widen_the_interval() -> None:
    """Alone they give Student's; with images, the squares of both distances add up."""
    half = t.ppf(0.975, 2) * 1.5 / 3**0.5
    assert interval(40.0, None, 1.5, 3) == pytest.approx((40 - half, 40 + half))
    images, both = interval(40.0, 1000), interval(40.0, 1000, 1.5, 3)
    assert 40 - both.low == pytest.approx(((40 - images.low) ** 2 + half**2) ** 0.5)
    assert both.high - 40 == pytest.approx(((images.high - 40) ** 2 + half**2) ** 0.5)
    assert interval(40.0, 1000, None, 1) == images


def test_a_number_that_counts_no_images_has_no_interval_from_one_seed() -> None:
    assert interval(31.0, None) is None


def test_images_of_one_group_have_no_interval_whatever_the_seeds() -> None:
    """Seeds say nothing about other groups."""
    assert interval(31.0, 0.0) is None
    assert interval(31.0, 0.0, 1.5, 3) is None


def test_intervals_stay_between_0_and_100() -> None:
    assert interval(0.0, 50).low == 0
    assert interval(100.0, 50).high == 100
    assert interval(99.0, 50, 3.0, 2).high == 100


@pytest.mark.parametrize("sizes", [(99, 1), (200, 1), (610, 5), (3000, 1)])
def test_one_large_group_beside_a_small_one_says_nothing(sizes) -> None:
    right = np.arange(sum(sizes)) % 3 == 0
    images = independent(right.astype(float), np.repeat([0, 1], sizes))
    assert interval(100 * right.mean(), images) == pytest.approx((0, 100))


def test_a_difference_of_independent_numbers_adds_in_quadrature() -> None:
    """Equal halves of 3 and 4 points give 5; the sides keep their own lengths."""
    ours = Estimate(60.0, 1.5, 5, Interval(57, 62), ("a",))
    other = Estimate(50.0, 2.0, 3, Interval(47, 54), ("b",))
    gain = difference(ours, other)
    assert (gain.mean, gain.sd, gain.n, gain.names) == (10.0, 2.5, 3, ("a", "b"))
    assert gain.interval == pytest.approx((10 - (3**2 + 4**2) ** 0.5, 10 + (2**2 + 3**2) ** 0.5))
    assert difference(ours, other._replace(sd=None, interval=None))[1:4] == (None, 3, None)
