"""Logistic regression has scikit-learn's solution."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from cl.features.logistic import fit


def problem(images: int, width: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(images, width)) / width**0.5
    logits = rows @ draws.normal(size=(width, classes)) * 3 + draws.gumbel(size=(images, classes))
    return rows, logits.argmax(1)


@pytest.mark.parametrize("c", [0.1, 10])
@pytest.mark.parametrize("classes", [2, 5])
def test_one_of_several_classes(classes, c) -> None:
    rows, labels = problem(60, 20, classes)
    theirs = LogisticRegression(C=c, tol=1e-9, max_iter=5000).fit(rows, labels)
    ours = fit(rows, np.eye(classes, dtype=bool)[labels], c, tolerance=1e-9)
    found = log_softmax(rows @ ours[:, :-1].T + ours[:, -1], axis=1)
    np.testing.assert_allclose(found, theirs.predict_log_proba(rows), atol=1e-6)


@pytest.mark.parametrize("c", [0.1, 10])
def test_each_class_against_all_others(c) -> None:
    rows, labels = problem(60, 20, 4)
    targets = np.eye(4, dtype=bool)[labels] | np.eye(4, dtype=bool)[(labels + np.arange(60) % 2) % 4]
    ours = fit(rows, targets, c, multilabel=True, tolerance=1e-9)
    for row, column in zip(ours, targets.T, strict=True):
        theirs = LogisticRegression(C=c, tol=1e-9, max_iter=5000).fit(rows, column)
        expected = np.append(theirs.coef_[0], theirs.intercept_)
        np.testing.assert_allclose(row, expected, atol=3e-6 * np.abs(expected).max())


def test_it_continues_from_an_earlier_solution() -> None:
    rows, labels = problem(60, 20, 5)
    targets = np.eye(5, dtype=bool)[labels]
    precise = fit(rows, targets, 1.0, tolerance=1e-9)
    np.testing.assert_array_equal(fit(rows, targets, 1.0, start=precise, tolerance=1e-3), precise)
