"""Bursts are found in names, times and features; independent images in any order give none."""

import tracemalloc

import numpy as np
import pytest

from cl.features import series as module
from cl.features.copies import groups
from cl.features.series import series
from cl.statistics import judge
from tests.support.bursts import CENTRES, made


def found(features: list[np.ndarray], labels: np.ndarray, names: list[str] | None = None) -> np.ndarray:
    names = names or [f"img_{number}.jpg" for number in range(len(labels))]
    return groups(len(labels), series(features, names, labels.astype(str).tolist()))


@pytest.mark.parametrize("order", ["mixed", "by class", "folders"])
@pytest.mark.parametrize("seed", range(4))
def test_independent_images_are_no_bursts(seed, order) -> None:
    features, labels = made(seed, 400, 1)
    if order == "by class":
        sort = labels.argsort(kind="stable")
        features, labels = features[sort], labels[sort]
    names = [f"{label}/{n}.jpg" for n, label in enumerate(labels)] if order == "folders" else None
    assert len(set(found([features], labels, names).tolist())) >= 398


@pytest.mark.parametrize("encoders", [1, 2])
@pytest.mark.parametrize("size", [3, 10])
def test_bursts_are_found_by_name_and_by_time(size, encoders) -> None:
    features, labels = made(0, 300 // size, size)
    both = [features, features @ np.random.default_rng(1).normal(size=(32, 40))][:encoders]
    number = found(both, labels)
    truth = np.arange(300) // size
    together, expected = number[:, None] == number, truth[:, None] == truth
    assert (together & expected).sum() > 0.9 * expected.sum()
    assert 0.85 * 300 / size < number.max() + 1 < 1.15 * 300 / size
    np.testing.assert_array_equal(found(both[::-1], labels), number)
    names = [f"{name}.jpg" for name in np.random.default_rng(0).permutation(300)]
    pairs = series(both, names, labels.astype(str).tolist(), np.arange(300.0))
    assert ((truth[pairs[:, 0]] == truth[pairs[:, 1]]).mean() > 0.95) and len(pairs) > 300 - 300 / size


@pytest.mark.parametrize("size", [3, 10])
def test_most_of_a_burst_is_found_if_its_images_differ_much(size) -> None:
    features, labels = made(0, 300 // size, size, alike=0.4)
    number, truth = found([features], labels), np.arange(300) // size
    together, expected = number[:, None] == number, truth[:, None] == truth
    assert (together & expected).sum() > 0.7 * expected.sum()
    assert np.bincount(number).max() < 60


def test_near_copies_are_found_anywhere_in_a_label_that_is_none_itself() -> None:
    features, labels = made(0, 300, 1)
    labels[[7, 200, 250]] = 0
    features[200] = features[7] + 0.05
    features[250] = features[7] - 0.05
    number = found([features], labels)
    assert len({number[7], number[200], number[250]}) == 1
    assert number.max() + 1 >= 297
    assert len(series([np.ones((40, 8))], ["a", "1²3"] * 20, ["x"] * 40)) == 0, "an encoder without features"
    for count in (4, 10):
        distinct = np.eye(2, 32)[np.arange(2 * count) % 2] + features[: 2 * count] / 30
        assert len(set(found([distinct], np.arange(2 * count) % 2).tolist())) == 2 * count


def test_many_images_are_compared_in_little_memory_and_by_projected_features(monkeypatch) -> None:
    monkeypatch.setattr(module, "MANY", 1000)
    rows = np.random.default_rng(0).normal(size=(2000, 256)).astype(np.float32)
    rows[1500] = rows[7] + 0.05
    tracemalloc.start()
    (pair,) = series([rows], [f"{n}.jpg" for n in range(2000)], ["x"] * 2000)
    assert tracemalloc.get_traced_memory()[1] < 20 * rows.nbytes
    tracemalloc.stop()
    assert pair.tolist() == [7, 1500]


def test_equal_encoders_are_not_called_different_for_their_bursts() -> None:
    """`cl compare`, in 20 sets of twenty bursts of thirty images: 5 % are 1, with a deviation of 1."""
    wrong = {"found": 0, "ignored": 0}
    for seed in range(20):
        (a, labels), (b, _) = made(seed, 20, 30), made(seed + 1000, 20, 30)
        b = b - CENTRES[made(seed + 1000, 20, 30)[1]] + CENTRES[labels]
        right = [((x @ CENTRES.T - (CENTRES**2).sum(1) / 2).argmax(1) == labels) * 100.0 for x in (a, b)]
        for name, used in (("found", found([a, b], labels)), ("ignored", None)):
            wrong[name] += judge({"measure": np.stack(right, 1)}, used).verdict != "cannot tell"
    assert wrong["found"] <= 4
    assert wrong["ignored"] > 6
