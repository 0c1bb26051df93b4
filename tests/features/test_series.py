"""Bursts are found in names, times and features; independent images in any order give none."""

import numpy as np
import pytest

from cl.commands.classifiers.heads import SHARED, train
from cl.features.copies import groups
from cl.features.series import series
from cl.statistics import independent, interval, judge

CENTRES = 0.35 * np.random.default_rng(9).normal(size=(4, 32))


def made(seed: int, bursts: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 32) of bursts whose images have a correlation of 0.7 within a class; classes (n,)."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(bursts) % 4).repeat(size)
    shared = rng.normal(size=(bursts, 32)).repeat(size, 0)
    own = rng.normal(size=(bursts * size, 32))
    return CENTRES[labels] + 0.7**0.5 * shared + 0.3**0.5 * own, labels


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


def test_near_copies_are_found_wherever_they_are() -> None:
    features, labels = made(0, 300, 1)
    features[200] = features[7] + 0.05
    features[250] = features[7] - 0.05
    number = found([features], labels)
    assert len({number[7], number[200], number[250]}) == 1
    assert number.max() + 1 >= 297
    assert len(series([np.ones((40, 8))], list("ab") * 20, ["x"] * 40)) == 0, "an encoder without features"


def test_the_accuracy_of_a_classifier_is_not_that_of_its_bursts() -> None:
    """`cl classify`, in four sets of thirty bursts; the truth is of new images."""
    new, truth = made(99, 2000, 1)
    errors, inside = {"found": [], "ignored": []}, 0
    for seed in range(4):
        features, labels = made(seed, 30, 10)
        for name, used in (("found", found([features], labels)), ("ignored", None)):
            fitted = train(features, np.eye(4, dtype=bool)[labels], list("abcd"), used)
            expected = 100 * (fitted.head.probabilities(new).argmax(1) == truth).mean()
            correct = (fitted.calibrated.argmax(1) == labels).astype(float)
            errors[name].append(100 * correct.mean() - expected)
            within = interval(100 * correct.mean(), independent(correct, used) / SHARED)
            assert within
            inside += name == "found" and within.low <= expected <= within.high
    assert np.mean(errors["ignored"]) > 15
    assert abs(np.mean(errors["found"])) < 6
    assert inside >= 3


def test_equal_encoders_are_not_called_different_for_their_bursts() -> None:
    """`cl compare`, in 60 sets of twenty bursts of thirty images: 5 % are 3, with a deviation of 1.7."""
    wrong = {"found": 0, "ignored": 0}
    for seed in range(60):
        (a, labels), (b, _) = made(seed, 20, 30), made(seed + 1000, 20, 30)
        b = b - CENTRES[made(seed + 1000, 20, 30)[1]] + CENTRES[labels]
        right = [((x @ CENTRES.T - (CENTRES**2).sum(1) / 2).argmax(1) == labels) * 100.0 for x in (a, b)]
        for name, used in (("found", found([a, b], labels)), ("ignored", None)):
            wrong[name] += judge({"measure": np.stack(right, 1)}, used).verdict != "cannot tell"
    assert wrong["found"] <= 8
    assert wrong["ignored"] > 20
