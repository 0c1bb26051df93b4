"""Nearest neighbours and their votes against loops, scikit-learn and answers worked out by hand."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from benchmarks.memory import growth
from cl.features import knn
from cl.features.knn import classify, nearest, nearest_in_array
from tests.support.objective import l2_normalize

MIB = 2**20


def loop(queries: Tensor, bank: Tensor, k: int) -> list[list[int]]:
    """Positions of the k nearest neighbours of each query."""
    ranked = []
    for query in queries:
        cosines = [
            (sum(float(a) * float(b) for a, b in zip(query, other, strict=True)), i)
            for i, other in enumerate(bank)
        ]
        ranked.append([i for _, i in sorted(cosines, reverse=True)[:k]])
    return ranked


def winners(
    queries: Tensor, bank: Tensor, labels: Tensor, ranked: list[list[int]], temperature: float
) -> list[int]:
    """The class with most votes, weighted as in the paper."""
    result = []
    for query, positions in zip(queries, ranked, strict=True):
        votes = [0.0] * 5
        for i in positions:
            votes[int(labels[i])] += math.exp(float(query @ bank[i]) / temperature)
        result.append(max(range(5), key=votes.__getitem__))
    return result


@pytest.mark.parametrize(("queries_each", "rows_each"), [(256, 2**16), (17, 100), (10, 7), (1, 299)])
def test_it_equals_a_plain_loop(queries_each, rows_each, monkeypatch) -> None:
    """For any blocks of queries and of the bank, also below k."""
    monkeypatch.setattr(knn, "QUERIES", queries_each)
    monkeypatch.setattr(knn, "ROWS", rows_each)
    torch.manual_seed(0)
    bank, labels = l2_normalize(300, 8), torch.randint(0, 5, (300,))
    queries = l2_normalize(40, 8)
    ranked = loop(queries, bank, 9)
    blocks = list(nearest(queries, bank, 9))
    assert len(blocks) == -(-40 // queries_each)
    assert torch.cat([positions for _, _, positions in blocks]).tolist() == ranked
    for block, cosines, positions in blocks:
        torch.testing.assert_close(cosines, (queries[block, None] * bank[positions]).sum(2))

    ks = [9, 1, 4]
    for temperature in (0.1, 1.0):
        predicted = classify(queries, bank, labels, 5, k=ks, temperature=temperature)
        for i, k in enumerate(ks):
            expected = winners(queries, bank, labels, [positions[:k] for positions in ranked], temperature)
            assert predicted[i].tolist() == expected, (k, temperature)


def test_a_low_temperature_does_not_overflow() -> None:
    torch.manual_seed(0)
    queries, bank = l2_normalize(20, 8).float(), l2_normalize(500, 8).float()
    labels = torch.randint(0, 5, (500,))
    predicted = classify(queries, bank, labels, 5, k=[9], temperature=0.001)
    assert torch.equal(predicted[0], labels[(queries @ bank.T).argmax(1)])


def test_memory_does_not_grow_with_queries_and_bank(monkeypatch) -> None:
    """Beyond the blocks of similarities (4 MiB here) only what is returned, even where all take 150 MiB."""
    monkeypatch.setattr(knn, "QUERIES", 64)
    monkeypatch.setattr(knn, "ROWS", 2**14)
    torch.manual_seed(0)
    bank, labels = l2_normalize(100_000, 8, dtype=torch.float32), torch.randint(0, 10, (100_000,))
    for stored in (bank, bank.half()):
        classify(bank[:64], stored, labels, 10, k=[20], temperature=0.07)  # the libraries' own buffers
        run = partial(classify, bank[:400], stored, labels, 10, k=[20], temperature=0.07)
        assert growth(run, torch.device("cpu")) < 24 * MIB


def features(count: int, width: int = 16, seed: int = 0) -> np.ndarray:
    """Rows of any length."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, width)) * rng.uniform(0.1, 10, (count, 1))
    return rows.astype(np.float32)


@pytest.mark.parametrize(("queries_each", "rows_each"), [(256, 2**14), (7, 100), (10, 3)])
@pytest.mark.parametrize("k", [1, 9, 300])
def test_the_search_in_an_array_equals_scikit_learn(queries_each, rows_each, k, monkeypatch) -> None:
    """For any blocks, also smaller than k."""
    monkeypatch.setattr(knn, "QUERIES", queries_each)
    monkeypatch.setattr(knn, "READ", rows_each)
    queries, bank = features(40), features(300, seed=1)
    distances, expected = (
        NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute")
        .fit(bank.astype(np.float64))
        .kneighbors(queries.astype(np.float64))
    )
    cosines, positions = nearest_in_array(queries, bank, k)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_allclose(cosines, 1 - distances, atol=1e-6)


@pytest.mark.parametrize("rows_each", [2**14, 64, 5])
def test_of_equal_similarities_the_earlier_row_comes_first(rows_each, monkeypatch) -> None:
    """Cosines of -1, 0 and 1 are exact, so nearly every query has ties at the border of its k nearest."""
    monkeypatch.setattr(knn, "ROWS", rows_each)
    monkeypatch.setattr(knn, "READ", rows_each)
    rng = np.random.default_rng(0)
    bank = np.eye(4, dtype=np.float32)[rng.integers(0, 4, 500)] * rng.choice([-1, 1], (500, 1))
    queries = np.eye(4, dtype=np.float32)
    expected = np.argsort(-(queries @ bank.T), axis=1, kind="stable")
    for k in (1, 10, 200, 500):
        np.testing.assert_array_equal(nearest_in_array(queries, bank, k)[1], expected[:, :k])
        ((_, _, positions),) = nearest(*map(torch.from_numpy, (queries, bank)), k)
        np.testing.assert_array_equal(positions, expected[:, :k])


def test_nan_beside_ties_comes_first() -> None:
    x = torch.tensor([[1.0, 2.0, math.nan, 2.0, 2.0, 0.0]])
    assert knn.largest(x, 2)[1].tolist() == [[2, 1]]


def test_memory_for_arrays_grows_only_with_the_result(monkeypatch) -> None:
    """All similarities would take 150 MiB; the blocks take 4 MiB here."""
    monkeypatch.setattr(knn, "QUERIES", 64)
    bank = features(100_000, 8)
    nearest_in_array(bank[:64], bank, 20)  # the libraries' own buffers
    assert growth(partial(nearest_in_array, bank[:400], bank, 20), torch.device("cpu")) < 24 * MIB
