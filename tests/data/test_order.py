"""The order of samples: exact, shuffled, near-sequential on the disk, and cheap to plan at scale."""

import tracemalloc

import numpy as np
import pytest

from cl.data.order import CHUNK, WINDOW, Order, Plan

SPAN = CHUNK * WINDOW


def whole(samples: int, seed: int, epoch: int) -> np.ndarray:
    return Order(samples, seed, epoch)[0:samples]


@pytest.mark.parametrize("samples", [1, 63, 64, 130, 1000, SPAN, SPAN + 1, 3 * SPAN + 70])
def test_an_epoch_is_a_permutation(samples) -> None:
    for epoch in range(4):  # the short chunk is in a different window each time
        assert np.array_equal(np.sort(whole(samples, 3, epoch)), np.arange(samples))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    assert np.array_equal(whole(1000, 1, 2), whole(1000, 1, 2))
    for other in ((1, 3), (2, 2)):
        assert (whole(1000, 1, 2) != whole(1000, *other)).mean() > 0.9


@pytest.mark.parametrize("epoch", range(3))
def test_any_stretch_is_that_part_of_the_epoch(epoch) -> None:
    samples = 3 * SPAN + 70
    expected = whole(samples, 0, epoch)
    for start, stop in (
        (0, 1),
        (5, 900),
        (SPAN - 3, SPAN + 3),
        (SPAN - 70, 3 * SPAN),
        (samples - 1, samples),
        (64, 64),
    ):
        assert np.array_equal(Order(samples, 0, epoch)[start:stop], expected[start:stop])


def test_windows_read_whole_chunks() -> None:
    """Cold disks and object stores see long reads: a whole chunk is needed within one window."""
    chunks, counts = np.unique(whole(10 * SPAN, 0, 0)[:SPAN] // CHUNK, return_counts=True)
    assert len(chunks) == WINDOW
    assert (counts == CHUNK).all()


def test_the_order_is_shuffled() -> None:
    """Every sample is equally likely everywhere, and neighbours in an epoch are not neighbours on disk."""
    samples, epochs, parts = 8 * SPAN, 40, 8
    table = np.zeros((parts, parts))  # part of the disk by part of the epoch
    adjacent = 0
    for epoch in range(epochs):
        order = whole(samples, 0, epoch)
        np.add.at(table, (order * parts // samples, np.arange(samples) * parts // samples), 1)
        adjacent += int((np.abs(np.diff(order)) == 1).sum())
    chunks = epochs * samples / CHUNK  # whole chunks are drawn, so a cell varies like a number of chunks
    assert table.sum() == epochs * samples
    statistic = ((table / CHUNK - chunks / parts**2) ** 2 / (chunks / parts**2)).sum()
    assert statistic < 90  # chi squared, 49 degrees of freedom: one seed in 3,000 exceeds 90
    assert adjacent / (epochs * samples) < 3 * 2 / SPAN  # two of SPAN in a window would be adjacent by chance


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_a_batch(ranks) -> None:
    plans = [Plan(1000, 96, 5, rank, ranks) for rank in range(ranks)]
    for step in range(25):
        epoch, batch = Plan(1000, 96, 5).step(step)
        shares = [plan.step(step) for plan in plans]
        assert {e for e, _ in shares} == {epoch} == {step // 10}
        assert np.array_equal(np.concatenate([share for _, share in shares]), batch)


@pytest.mark.parametrize("samples", [1000, 3 * SPAN + 70])
def test_a_batch_is_a_stretch_of_the_order(samples) -> None:
    for step in range(2 * (samples // 96)):
        epoch, batch = Plan(samples, 96, 5).step(step)
        start = step % (samples // 96) * 96
        assert sorted(batch) == sorted(Order(samples, 5, epoch)[start : start + 96])


@pytest.mark.parametrize(("ranks", "times"), [(8, 1.2), (64, 2.2)])
def test_most_chunks_are_read_by_one_process_or_two(ranks, times) -> None:
    samples, batch = 10 * SPAN, 4096
    chunks = 0
    for rank in range(ranks):
        plan = Plan(samples, batch, 5, rank, ranks)
        positions = np.concatenate([plan.step(step)[1] for step in range(plan.steps_per_epoch)])
        chunks += len(np.unique(positions // CHUNK))
    assert samples / CHUNK <= chunks < times * samples / CHUNK


def test_the_part_of_a_process_has_all_classes_even_where_they_lie_together() -> None:
    """Shards that someone else wrote may be in the order of classes; batch norm sees a part of a batch."""
    samples, batch, classes = 4 * SPAN, 256, 10
    plan = Plan(samples, batch, 5, 3, 8)
    labels = np.concatenate([plan.step(s)[1] * classes // samples for s in range(samples // batch)])
    assert np.bincount(labels) / len(labels) == pytest.approx(1 / classes, rel=0.25)


def test_batches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=128 exceeds the 120 images; choose"):
        Plan(120, 128, 0)
    with pytest.raises(ValueError, match="batch_size=32 must be a multiple of the 3"):
        Plan(120, 32, 0, 0, 3)


@pytest.mark.parametrize(
    ("samples", "steps", "most"),
    [(10**8, range(100), 40e6), (10**7, range(0, 73_230, 2441), 12e6)],
)
def test_huge_epochs_take_little_memory(samples, steps, most) -> None:
    """The order is computed window by window; of past epochs, which take 1.3 MB here, nothing is kept."""
    tracemalloc.start()
    for step in steps:
        Plan(samples, 4096, 0).step(step)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < most
