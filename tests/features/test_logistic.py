"""Logistic regression has scikit-learn's solution."""

import numpy as np

from cl.features.logistic import fit


def problem(images: int, width: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(images, width)) / width**0.5
    logits = rows @ draws.normal(size=(width, classes)) * 3 + draws.gumbel(size=(images, classes))
    return rows, logits.argmax(1)


def test_it_continues_from_an_earlier_solution() -> None:
    rows, labels = problem(60, 20, 5)
    targets = np.eye(5, dtype=bool)[labels]
    precise = fit(rows, targets, 1.0, tolerance=1e-9)
    np.testing.assert_array_equal(fit(rows, targets, 1.0, start=precise, tolerance=1e-3), precise)
