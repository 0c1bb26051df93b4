"""Processes that are not there."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def pretended_ranks(number: int) -> Iterator[None]:
    """In the block, this process is rank 0 of several; what it exchanges with the others goes nowhere."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
    try:
        yield
    finally:
        dist.destroy_process_group()
