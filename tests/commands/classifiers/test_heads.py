"""The classifier of features against scikit-learn called directly, and against loops."""

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from cl.commands.classifiers import heads
from cl.commands.classifiers.heads import (
    calibration_error,
    fit_temperature,
    largest_calibration_error,
    train,
)


def clouds(n: int, classes: int, width: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, width) float32 around a centre per class, and classes (n,) in turn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = np.random.default_rng(99).normal(size=(classes, width))
    return (centres[labels] + noise * rng.normal(size=(n, width))).astype(np.float32), labels


def named(classes: int) -> list[str]:
    return [f"class {number}" for number in range(classes)]


def scaled(features: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Unit rows, less the mean of `like`, whose mean squared norm becomes 1."""
    rows, reference = normalize(features.astype(np.float64)), normalize(like.astype(np.float64))
    centre = reference.mean(0)
    return (rows - centre) / np.sqrt(((reference - centre) ** 2).sum(1).mean())


@pytest.mark.parametrize("width", [5, 300], ids=["more images than features", "fewer"])
@pytest.mark.parametrize("classes", [2, 4])
def test_the_head_is_the_solution_of_scikit_learn(width, classes) -> None:
    """LogisticRegression on unit features, centred and scaled to mean squared norm 1."""
    features, labels = clouds(60, classes, width, noise=1.5)
    new, _ = clouds(30, classes, width, noise=1.5, seed=1)
    found = train(features, np.eye(classes, dtype=bool)[labels], named(classes))
    solution = LogisticRegression(C=found.regularisation, tol=1e-9, max_iter=10_000)
    expected = solution.fit(scaled(features, features), labels).predict_proba(scaled(new, features))
    head = heads.Head(found.head.weights, found.head.bias, 1.0, multilabel=False)
    np.testing.assert_allclose(head.probabilities(new), expected, atol=1e-5)


def test_one_head_per_label_if_images_have_several() -> None:
    features, labels = clouds(80, 4, 20, noise=1.5)
    targets = np.eye(4, dtype=bool)[labels] | np.eye(4, dtype=bool)[(labels + (np.arange(80) > 60)) % 4]
    found = train(features, targets, named(4), multilabel=True)
    rows = scaled(features, features)
    probabilities = heads.Head(found.head.weights, found.head.bias, 1.0, multilabel=True).probabilities(
        features
    )
    for column, truth in zip(probabilities.T, targets.T, strict=True):
        solution = LogisticRegression(C=found.regularisation, tol=1e-9, max_iter=10_000).fit(rows, truth)
        np.testing.assert_allclose(column, solution.predict_proba(rows)[:, 1], atol=1e-5)


def test_the_regularisation_has_the_smallest_log_loss_of_held_out_images() -> None:
    features, labels = clouds(60, 3, 20, noise=2.5)
    targets = np.eye(3, dtype=bool)[labels]
    rows, folds = scaled(features, features), heads.folds_of(targets, named(3))
    losses = {}
    for c in heads.GRID:
        model, held_out = LogisticRegression(C=c, max_iter=10_000), np.empty((60, 3))
        for seen, others in folds:
            held_out[others] = model.fit(rows[seen], labels[seen]).predict_proba(rows[others])
        losses[c] = -np.log(held_out[targets]).mean()
    best = min(losses, key=losses.__getitem__)
    assert min(heads.GRID) < best < max(heads.GRID)
    assert train(features, targets, named(3)).regularisation == best


def test_a_temperature_per_fold_calibrates() -> None:
    """Images of different folds have different temperatures, which leave the ranking as it is."""
    features, labels = clouds(60, 2, 20, noise=2.5)
    found = train(features, np.eye(2, dtype=bool)[labels], named(2))
    before, after = np.empty(60), np.log(found.calibrated[:, 0] / found.calibrated[:, 1])
    for head, held_out in found.folds:
        before[held_out] = -np.diff(head.logits(features[held_out]))[:, 0]
    temperatures = np.unique((before / after).round(3))
    assert 1 < len(temperatures) <= 5
    assert found.head.temperature != 1


def test_held_out_images_do_not_train_the_heads_that_measure_them() -> None:
    """Labels without meaning: accuracy is that of guessing, although a head can learn 40 images by heart."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(40, 200)).astype(np.float32), np.arange(40) % 2
    targets = np.eye(2, dtype=bool)[labels]
    found = train(features, targets, named(2))
    assert (found.head.probabilities(features).argmax(1) == labels).mean() > 0.95
    assert (found.calibrated.argmax(1) == labels).mean() < 0.7


def test_images_of_a_group_are_held_out_together() -> None:
    """A group is known by its features, and its label has no other meaning."""
    features, groups = clouds(120, 30, 50, noise=0.1)
    labels = np.random.default_rng(1).permutation(np.arange(30) % 2)[groups]
    targets = np.eye(2, dtype=bool)[labels]
    assert (train(features, targets, named(2)).calibrated.argmax(1) == labels).mean() > 0.95
    assert (train(features, targets, named(2), groups).calibrated.argmax(1) == labels).mean() < 0.75


def test_a_class_that_some_fold_would_not_see_is_refused() -> None:
    features, labels = clouds(20, 2, 8, noise=1.0)
    with pytest.raises(ValueError, match=r"'robin'.*two classes"):
        train(features, np.ones((20, 1), bool), ["robin"])
    alone = np.where(np.arange(20) == 7, 2, labels)
    with pytest.raises(ValueError, match=r"'class 2' has 1 labelled image, expected at least 2"):
        train(features, np.eye(3, dtype=bool)[alone], named(3))
    with pytest.raises(ValueError, match=r"'class [01]' has 10 labelled images, expected .* group or burst"):
        train(features, np.eye(2, dtype=bool)[labels], named(2), labels)


def test_two_images_per_class_are_enough() -> None:
    features, labels = clouds(10, 5, 30, noise=0.3)
    found = train(features, np.eye(5, dtype=bool)[labels], named(5))
    assert (found.calibrated.argmax(1) == labels).all()
    assert (found.regularisation, found.head.temperature) == (heads.USUAL, 1)


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("images", [40, 100, 400])
def test_few_images_do_not_overstate_the_calibration_error(images, multilabel) -> None:
    """Logits as the labels were drawn, a third too large, and so large that few images of 50 are wrong."""
    rng = np.random.default_rng(0)

    def drawn(count: int, size: float, scale: float, copies: int = 1) -> tuple[float, float]:
        logits = size * rng.normal(size=(count, 4))
        p = heads.probabilities(logits, 1.0, multilabel=multilabel)
        one = np.eye(4, dtype=bool)[(p.cumsum(1) < rng.random((count, 1))).sum(1).clip(max=3)]
        targets = rng.random(p.shape) < p if multilabel else one
        rows = np.arange(count).repeat(copies)
        stated, targets = heads.probabilities(scale * logits, 1.0, multilabel=multilabel)[rows], targets[rows]
        error = calibration_error(stated, targets, multilabel=multilabel, independent=count)
        right = targets if multilabel else targets[np.arange(len(rows)), stated.argmax(1)]
        return error, largest_calibration_error(error, right, count)

    for size, scale, copies in ((1.5, 1.0, 1), (1.5, 1.8, 1), (1.5, 1.8, 5), (30, 10, 1)):
        true = drawn(50_000, size, scale)[0]
        found, most = np.array([drawn(images, size, scale, copies) for _ in range(100)]).T
        assert (most >= true).mean() > 0.9
        if scale == 1.8:
            assert true / 1.3 < found.mean() < 1.3 * true


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_temperature_has_the_smallest_log_loss(multilabel) -> None:
    """Against a grid; labels drawn with probabilities of temperature 2.5 give it back."""
    rng = np.random.default_rng(0)
    logits = 5 * rng.normal(size=(4000, 3))
    p = heads.probabilities(logits, 2.5, multilabel=multilabel)
    if multilabel:
        targets = rng.random(p.shape) < p
    else:
        targets = np.eye(3, dtype=bool)[[rng.choice(3, p=row) for row in p]]
    found = fit_temperature(logits, targets, multilabel=multilabel)

    def loss(temperature: float) -> float:
        q = heads.probabilities(logits, temperature, multilabel=multilabel)
        return -sum(
            math.log(x if right else 1 - x) if multilabel else math.log(x) * right
            for row, truth in zip(q.tolist(), targets.tolist(), strict=True)
            for x, right in zip(row, truth, strict=True)
        )

    assert found == pytest.approx(2.5, rel=0.1)
    assert loss(found) <= min(loss(found * 0.98), loss(found * 1.02))


def test_images_that_are_all_right_do_not_give_certainty() -> None:
    targets = np.eye(2, dtype=bool)[np.arange(10) % 2]
    logits = np.where(targets, 3.0, -3.0)
    temperature = fit_temperature(logits, targets, multilabel=False)
    assert heads.probabilities(logits, temperature, multilabel=False).max() == pytest.approx(
        21 / 22, abs=1e-3
    )
