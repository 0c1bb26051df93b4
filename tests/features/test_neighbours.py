"""Nearest rows against float64 NumPy and scikit-learn, with ties, and in bounded memory."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from benchmarks.memory import growth
from cl.features import neighbours
from cl.features.neighbours import nearest

MIB = 2**20


def features(count: int, width: int = 16, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)).astype(np.float32) * rng.uniform(0.1, 10, (count, 1)).astype(
        np.float32
    )


@pytest.mark.parametrize(("queries_each", "rows_each"), [(256, 2**14), (7, 100), (10, 3)])
@pytest.mark.parametrize("k", [1, 9, 300])
def test_it_equals_scikit_learn(queries_each, rows_each, k, monkeypatch) -> None:
    """For any blocks, also smaller than k, and for rows of any length."""
    monkeypatch.setattr(neighbours, "QUERIES", queries_each)
    monkeypatch.setattr(neighbours, "ROWS", rows_each)
    queries, bank = features(40), features(300, seed=1)
    distances, expected = (
        NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute")
        .fit(bank.astype(np.float64))
        .kneighbors(queries.astype(np.float64))
    )
    cosines, positions = nearest(queries, bank, k)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_allclose(cosines, 1 - distances, atol=1e-6)


@pytest.mark.parametrize("rows_each", [2**14, 64, 5])
def test_of_equal_similarities_the_earlier_image_comes_first(rows_each, monkeypatch) -> None:
    """Cosines of -1, 0 and 1 are exact, so nearly every query has ties at the border of its k nearest."""
    monkeypatch.setattr(neighbours, "ROWS", rows_each)
    rng = np.random.default_rng(0)
    bank = np.eye(4, dtype=np.float32)[rng.integers(0, 4, 500)] * rng.choice([-1, 1], (500, 1))
    queries = np.eye(4, dtype=np.float32)
    expected = np.argsort(-(queries @ bank.T), axis=1, kind="stable")
    for k in (1, 10, 200, 500):
        np.testing.assert_array_equal(nearest(queries, bank, k)[1], expected[:, :k])


def test_memory_mapped_half_precision_gives_the_same(tmp_path) -> None:
    bank = features(1000).astype(np.float16)
    np.save(tmp_path / "bank.npy", bank)
    mapped = np.load(tmp_path / "bank.npy", mmap_mode="r")
    found, expected = nearest(bank[:5], mapped, 3), nearest(bank[:5], bank.astype(np.float32), 3)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("queries_rows", "row"), [(True, 3), (False, 150)])
def test_features_that_are_not_finite_are_refused(queries_rows, row, monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "ROWS", 100)
    queries, bank = features(5), features(200)
    (queries if queries_rows else bank)[row, 2] = np.nan
    with pytest.raises(ValueError, match=f"row {row} .*not finite"):
        nearest(queries, bank, 3)


@pytest.mark.parametrize("k", [0, 6])
def test_k_beyond_the_bank_is_refused(k) -> None:
    with pytest.raises(ValueError, match=f"found 5 .* {k} nearest; .* 1 to 5"):
        nearest(features(2), features(5), k)


def test_memory_grows_only_with_the_result(monkeypatch) -> None:
    """All similarities would take 1.5 GiB; the blocks take 4 MiB here."""
    monkeypatch.setattr(neighbours, "QUERIES", 64)
    bank = features(200_000, 8)
    nearest(bank[:64], bank, 20)  # the libraries' own buffers
    assert growth(partial(nearest, bank[:2000], bank, 20), torch.device("cpu")) < 24 * MIB
