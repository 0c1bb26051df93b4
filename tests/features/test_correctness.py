"""Measures of each image against loops in NumPy, and features that show that an encoder is broken."""

import numpy as np
import pytest
import torch

import cl
from cl.features import correctness as module
from cl.features.correctness import check_different, correctness, draws, few_shot
from cl.features.scores import checked


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, ...]:
    """Training features of A and B with labels, and validation features with labels; overlapping clusters."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat(["wren", "robin", "owl"], 40))
    centres = dict(zip(["wren", "robin", "owl"], random.normal(size=(3, 8)), strict=True))
    a, b = (np.stack([centres[x] for x in labels]) + random.normal(size=(120, 8)) * s for s in (1.0, 2.0))
    return a[:80], b[:80, :5], labels[:80], a[80:], b[80:, :5], labels[80:]


def test_means_over_images_are_the_accuracies_of_each_encoder(data) -> None:
    train_a, train_b, known, val_a, val_b, truth = data
    found = correctness((train_a, train_b), known, (val_a, val_b), truth, k=7)
    assert list(found) == [
        "kNN, k = 7", "logistic regression", "1 label per class", "4 labels per class", "16 labels per class"
    ]  # fmt: skip
    for column, (x, y) in enumerate(((train_a, val_a), (train_b, val_b))):
        assert found["kNN, k = 7"][:, column].mean() == cl.knn_accuracy(x, known, y, truth, k=7)
        assert found["logistic regression"][:, column].mean() == cl.linear_probe(x, known, y, truth)
    few = correctness((train_a, train_b), known, (val_a, val_b), truth, k=500)
    assert "kNN, k = 80" in few


def test_few_labels_are_the_nearest_mean_of_centred_unit_features(data) -> None:
    train, _, known, val, _, truth = data
    drawn = draws(known, 4, seed=3)[:5]
    centre, right = train.mean(0), np.zeros(len(val))
    x, y = ((rows - centre) / np.linalg.norm(rows - centre, axis=1, keepdims=True) for rows in (train, val))
    for positions in drawn:
        for image, query in enumerate(y):
            distances = [np.linalg.norm(query - x[each].mean(0)) for each in positions]
            right[image] += np.unique(known)[np.argmin(distances)] == truth[image]
    assert few_shot(*checked(train, known, val, truth), drawn).numpy() == pytest.approx(right / 5)


def test_draws_take_images_of_each_class_and_repeat_none_before_they_must() -> None:
    labels = np.array(["b"] * 9 + ["a"] * 13)
    found = draws(labels, 4, seed=0)
    assert found.shape == (module.DRAWS, 2, 4)
    assert (labels[found[:, 0]] == "a").all()
    assert (labels[found[:, 1]] == "b").all()
    for first in range(0, len(found), 2):  # 9 // 4 draws share no image
        assert len(np.unique(found[first : first + 2])) == 16
    assert not np.array_equal(found, draws(labels, 4, seed=1))
    assert draws(labels, 16, seed=0).shape == (0, 2, 16)


def test_an_encoder_that_gives_all_images_the_same_features_is_named(data) -> None:
    same = 1 + 1e-7 * torch.as_tensor(data[0])
    with pytest.raises(ValueError, match="init gives all images the same features"):
        check_different(same, "init")
