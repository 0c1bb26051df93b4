"""Rehearsals: of a long loop only the first rounds run, and what the others would use is estimated from them.

    with rehearsing() as rehearsal:
        ...                             # code whose loops go through `rounds`, or a `Loop`
    rehearsal.left_out["seconds"]       # what the rest of these loops would have taken

Outside of such a block, loops run in full.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

import torch

from cl.runtime.distributed import any_rank

WARM_UP = 3  # rounds that do not count
LEAST, MOST, SECONDS = 5, 20, 5.0  # rounds that count: LEAST, then until MOST or until SECONDS have passed

T = TypeVar("T")
Amounts = dict[str, float]  # seconds, and what else is counted, such as joules


class Rehearsal:
    """What was left out of the loops in a `rehearsing` block, and the loops, in the order they began."""

    def __init__(self, counters: Callable[[], Amounts]) -> None:
        self.counters = counters
        self.left_out: Amounts = {}
        self.loops: list[Loop[Any]] = []

    def now(self) -> Amounts:
        """The counters as if nothing had been left out; only differences are meaningful."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return _plus({"seconds": time.monotonic(), **self.counters()}, self.left_out)


_current: Rehearsal | None = None


@contextmanager
def rehearsing(counters: Callable[[], Amounts] = dict) -> Iterator[Rehearsal]:
    """Cut loops short in this block; `counters` are estimated in the same way as seconds."""
    global _current
    _current = Rehearsal(counters)
    try:
        yield _current
    finally:
        _current = None


class Loop(Generic[T]):
    """A loop over `total` items, which runs inside of this context, and calls `enough` at the end of a round.

    Attributes:
        done: rounds that have run.
        per_round: what a round uses; known in a rehearsal, once the loop has ended.
    """

    def __init__(self, items: Iterable[T], total: int) -> None:
        self.items, self.total, self.done, self._over = items, total, 0, False
        self.per_round: Amounts = {}
        self._rehearsal = _current
        self._asides: list[Amounts] = []
        self._times = 0
        if self._rehearsal:
            self._rehearsal.loops.append(self)
            self._start()

    def __enter__(self) -> Self:
        return self

    def _start(self) -> None:
        assert self._rehearsal
        self._since, self._first = self._rehearsal.now(), self.done
        self._clock = time.monotonic()  # `now` would make the host wait for the GPU in every round

    def __iter__(self) -> Iterator[T]:
        for item in self.items:
            yield item
            if self._over:
                return

    def enough(self, *, together: bool = False) -> bool:
        """A round is done: whether the others are left out. Always False outside of a rehearsal.

        Args:
            together: the processes of the run have as many rounds, and end in the same.
        """
        self.done += 1
        if not self._rehearsal:
            return False
        if self.done == WARM_UP < self.total:
            self._start()
        counted = self.done - WARM_UP
        enough = counted >= MOST or (counted >= LEAST and time.monotonic() - self._clock >= SECONDS)
        self._over = any_rank(enough)[0] if together else enough
        return self._over

    @contextmanager
    def aside(self, times: int) -> Iterator[None]:
        """Work between rounds, of which the whole loop does `times`, such as what follows an epoch."""
        if not self._rehearsal:
            yield
            return
        before, clock, self._times = self._rehearsal.now(), time.monotonic(), times
        yield
        used = _minus(self._rehearsal.now(), before)
        self._asides.append(used)
        self._since = _plus(self._since, used)
        self._clock += time.monotonic() - clock

    def __exit__(self, *error: object) -> None:
        """Estimate what the rounds left out would have used, and let go of the items and their workers."""
        self.items = ()
        if not self._rehearsal or not self.done:
            return
        counted = self.done - self._first
        self.per_round = _times(_minus(self._rehearsal.now(), self._since), 1 / max(counted, 1))
        rounds = _times(self.per_round, self.total - self.done)
        missing = self._times - len(self._asides)
        asides = [_times(aside, missing / len(self._asides)) for aside in self._asides]
        for part in (rounds, *asides):
            self._rehearsal.left_out = _plus(part, self._rehearsal.left_out)


def rounds(items: Iterable[T], total: int) -> Iterator[T]:
    """The items, of which there are `total`; in a rehearsal the first of them."""
    with Loop(items, total) as loop:
        for item in loop:
            yield item
            loop.enough()


def _plus(amounts: Amounts, others: Amounts) -> Amounts:
    return {name: amount + others.get(name, 0.0) for name, amount in amounts.items()}


def _minus(amounts: Amounts, others: Amounts) -> Amounts:
    """The differences of what both have; a counter may be lost on the way."""
    return {name: amount - others[name] for name, amount in amounts.items() if name in others}


def _times(amounts: Amounts, factor: float) -> Amounts:
    return {name: amount * factor for name, amount in amounts.items()}
