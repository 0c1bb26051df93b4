"""The queue of embeddings."""

import pytest
import torch

from cl.networks.queue import Queue


@pytest.mark.parametrize("sizes", [[3, 3, 3], [7, 2, 9, 1], [10]])
def test_the_queue_accepts_batches_of_any_size(sizes) -> None:
    """A ring of ten against a list; batches that do not divide it."""
    queue = Queue(10, 5)
    expected = list(queue.rows.clone())
    for number, size in enumerate(sizes):
        keys = torch.randn(size, 5, generator=torch.Generator().manual_seed(number))
        queue.enqueue(keys, None, torch.Generator())
        expected = (expected + list(keys))[-10:]
        start = int(queue.oldest)
        assert torch.equal(torch.cat([queue.rows[start:], queue.rows[:start]]), torch.stack(expected))


def test_a_queue_smaller_than_the_batch_holds_random_keys_of_it() -> None:
    """EqCo, section 2.3: K < N."""
    queue = Queue(3, 5)
    seen = set()
    for step in range(20):
        keys = torch.randn(8, 5)
        queue.enqueue(keys, None, torch.Generator().manual_seed(step))
        places = [int((keys == row).all(1).nonzero()) for row in queue.rows]
        assert len(set(places)) == 3
        seen |= set(places)
    assert seen == set(range(8))
