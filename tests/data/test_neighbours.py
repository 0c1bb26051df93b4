"""Images of a value that are drawn together, and batches of few values."""

from collections import Counter

import numpy as np
import pytest

from cl.data.order import Neighbours, Plan

SAMPLES, BATCH = 1000, 48
RNG = np.random.default_rng(0)
OBJECTS = np.where(RNG.random(SAMPLES) < 0.1, -1 - np.arange(SAMPLES), RNG.integers(0, 150, SAMPLES))
SITES = RNG.integers(0, 3, SAMPLES)
BOTH = Neighbours(OBJECTS, SITES, 4, 2)


def plan(neighbours: Neighbours, rank: int = 0, ranks: int = 1, seed: int = 5) -> Plan:
    return Plan(SAMPLES, BATCH, seed, rank, ranks, neighbours=neighbours)


@pytest.mark.parametrize(
    "neighbours", [BOTH, Neighbours(OBJECTS, None, 3, 1), Neighbours(None, SITES, 2, 1)], ids=str
)
def test_no_image_twice_and_the_same_on_any_number_of_processes(neighbours) -> None:
    one = plan(neighbours)
    for epoch in range(2):
        steps = range(epoch * one.steps_per_epoch, (epoch + 1) * one.steps_per_epoch)
        batches = [one.step(step) for step in steps]
        drawn = np.concatenate([batch for _, batch in batches])
        assert {number for number, _ in batches} == {epoch}
        assert len(np.unique(drawn)) == len(drawn) == SAMPLES // BATCH * BATCH
        for ranks in (2, 4):
            for step, (_, batch) in zip(steps, batches, strict=True):
                shares = [plan(neighbours, rank, ranks).step(step)[1] for rank in range(ranks)]
                assert np.array_equal(np.concatenate(shares), batch)
    assert (one.step(0)[1] != plan(neighbours, seed=6).step(0)[1]).mean() > 0.9


def test_a_value_has_as_many_images_together_as_it_can() -> None:
    """All but what its images leave over after sets of four."""
    order = BOTH.order(SAMPLES, BATCH, np.random.default_rng(0))
    sets = OBJECTS[order].reshape(-1, 4)
    whole = sets[(sets == sets[:, :1]).all(1), 0]
    counts = np.bincount(OBJECTS[OBJECTS >= 0])
    full = int((counts // 4).sum())
    assert full - BATCH / 4 <= len(whole) <= full, "but for the batch that is left out"


def test_a_batch_has_few_values() -> None:
    """Two runs of one site each, but for the last runs, which mix what is left over."""
    first = plan(Neighbours(None, SITES, 2, 2))
    batches = [SITES[first.step(step)[1]].reshape(2, -1) for step in range(first.steps_per_epoch)]
    mixed = sum(len(np.unique(run)) > 1 for batch in batches for run in batch)
    assert mixed <= 3
    starts = Counter(tuple(batch[:, 0]) for batch in batches)
    assert len(starts) > 3, "in random order"


def test_images_drawn_together_fill_the_share_of_a_process() -> None:
    with pytest.raises(ValueError, match="batch_size=48, 6 images.*multiple of 8.*dataset.per_value"):
        plan(BOTH, 0, 8)
