"""Accuracies of simple classifiers on arrays and tensors, against NumPy and scikit-learn."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sklearn.linear_model import LogisticRegression

import cl
from tests.support.processes import run_ranks


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Overlapping clusters; coordinates of different scales."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=150)
    features = random.normal(size=(3, 6))[labels] + 1.5 * random.normal(size=(150, 6))
    features *= 10.0 ** np.arange(-2, 4)
    return features[:90], labels[:90], features[90:], labels[90:]


def test_knn_accuracy_is_that_of_the_weighted_votes(data) -> None:
    train, known, test, truth = data
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test)]
    right = 0
    for query, label in zip(unit[1], truth, strict=True):
        cosines = unit[0] @ query
        near = np.argsort(-cosines)[:7]
        votes = np.bincount(known[near], np.exp(cosines[near] / 0.5), minlength=3)
        right += votes.argmax() == label
    assert cl.knn_accuracy(*data, k=7, temperature=0.5) == pytest.approx(100 * right / 60)


def on_rank(folder: Path, data: tuple[np.ndarray, ...], expected: float, rank: int) -> None:
    """The test rows of rank 1 have another order."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    train, known, test, truth = data
    step = -1 if rank else 1
    assert cl.knn_accuracy(train, known, test[::step], truth[::step]) == expected
    dist.barrier()  # or one may end while the other still connects
    dist.destroy_process_group()


def test_processes_of_a_training_measure_their_own_features(data, tmp_path) -> None:
    run_ranks(2, on_rank, tmp_path, data, cl.knn_accuracy(*data))


def test_the_linear_probe_standardises_with_the_training_rows(data) -> None:
    train, known, test, truth = data
    a, b = ((x - train.mean(0)) / train.std(0) for x in (train, test))
    expected = LogisticRegression(C=0.1, max_iter=1000).fit(a, known).score(b, truth)
    assert cl.linear_probe(*data, c=0.1) == pytest.approx(100 * expected)


@pytest.mark.parametrize("score", ["knn_accuracy", "linear_probe"])
def test_arrays_tensors_and_named_classes_give_the_same(score, data) -> None:
    score, names = getattr(cl, score), np.array(["wren", "robin", "owl"])
    train, known, test, truth = data
    expected = score(*data)
    assert score(*map(torch.from_numpy, data)) == expected
    assert score(train, names[known], test.tolist(), list(names[truth])) == expected


def test_what_does_not_fit_is_refused(data) -> None:
    train, known, test, truth = data
    for call, parts in (
        (lambda: cl.knn_accuracy(train, known, test, truth, k=91), ["k=91", "90"]),
        (lambda: cl.knn_accuracy(train, known, test, truth, k=0), ["k=0", "at least 1"]),
        (lambda: cl.knn_accuracy(train, known, test, truth, temperature=0), ["temperature=0", "above 0"]),
        (lambda: cl.linear_probe(train, known, test, truth, c=0), ["c=0", "above 0"]),
        (lambda: cl.knn_accuracy(train, known, test[:, :4], truth), ["6 wide", "4"]),
        (lambda: cl.knn_accuracy(train, known[:5], test, truth), ["train_labels", "(5,)", "90 rows"]),
        (lambda: cl.linear_probe(train[0], known, test, truth), ["train_features", "(6,)", "(rows, width)"]),
        (lambda: cl.linear_probe(train, known, test * np.nan, truth), ["test_features", "NaN"]),
        (lambda: cl.linear_probe(train, known * 0, test, truth), ["one label", "two or more"]),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert all(part in str(error.value) for part in parts), str(error.value)
