"""Rehearsals run only the first rounds of each long loop, and estimate from them what the others would use.

    with rehearsing() as rehearsal:
        ...                             # code whose loops go through `rounds`, or a `Loop`
    rehearsal.left_out["seconds"]       # what the rest of these loops would have taken

Outside of such a block, loops run in full.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

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
    """A loop over `total` items, whose body calls `enough` at the end of each round.

    Attributes:
        done: rounds that have run.
        per_round: what a round uses; known in a rehearsal, after the last round.
    """

    def __init__(self, items: Iterable[T], total: int) -> None:
        self.total, self.done = total, 0
        self.per_round: Amounts = {}
        self._items, self._over, self._rehearsal = items, False, _current
        self._asides: list[Amounts] = []
        self._asides_in_full = 0

    def __iter__(self) -> Iterator[T]:
        items, self._items = self._items, ()  # this generator alone keeps them and their workers
        if self._rehearsal:
            self._rehearsal.loops.append(self)
            self._start(self._rehearsal)
        for item in items:
            yield item
            if self._over:
                break
        if self._rehearsal and self.per_round:
            self._estimate(self._rehearsal)

    def _start(self, rehearsal: Rehearsal) -> None:
        self._since, self._first = rehearsal.now(), self.done
        self._clock = time.monotonic()  # `now` would make the host wait for the GPU in every round

    def enough(self, *, together: bool = False) -> bool:
        """A round is done: whether the others are left out. Always False outside of a rehearsal.

        Args:
            together: all processes run this loop; they leave out the same rounds.
        """
        self.done += 1
        if not self._rehearsal:
            return False
        if self.done == WARM_UP < self.total:
            self._start(self._rehearsal)
        counted = self.done - WARM_UP
        enough = counted >= MOST or (counted >= LEAST and time.monotonic() - self._clock >= SECONDS)
        self._over = any_rank(enough)[0] if together else enough
        if self._over or self.done == self.total:  # before what follows the last round, such as saving
            used = _minus(self._rehearsal.now(), self._since)
            self.per_round = _times(used, 1 / (self.done - self._first))
        return self._over

    @contextmanager
    def aside(self, times: int) -> Iterator[None]:
        """Work between rounds that the full loop does `times` times, such as what follows an epoch."""
        if not self._rehearsal:
            yield
            return
        before, clock, self._asides_in_full = self._rehearsal.now(), time.monotonic(), times
        yield
        used = _minus(self._rehearsal.now(), before)
        self._asides.append(used)
        self._since = _plus(self._since, used)
        self._clock += time.monotonic() - clock

    def _estimate(self, rehearsal: Rehearsal) -> None:
        """Estimate what the rounds and asides that were left out would have used."""
        rounds = _times(self.per_round, self.total - self.done)
        missing = self._asides_in_full - len(self._asides)
        asides = [_times(aside, missing / len(self._asides)) for aside in self._asides]
        for part in (rounds, *asides):
            rehearsal.left_out = _plus(part, rehearsal.left_out)


def rounds(items: Iterable[T], total: int) -> Iterator[T]:
    """The `total` items; in a rehearsal only the first of them."""
    loop = Loop(items, total)
    for item in loop:
        yield item
        loop.enough()


def _plus(amounts: Amounts, others: Amounts) -> Amounts:
    return {name: amount + others.get(name, 0.0) for name, amount in amounts.items()}


def _minus(amounts: Amounts, others: Amounts) -> Amounts:
    """The differences of the amounts that both have; a counter may have been lost in between."""
    return {name: amount - others[name] for name, amount in amounts.items() if name in others}


def _times(amounts: Amounts, factor: float) -> Amounts:
    return {name: amount * factor for name, amount in amounts.items()}
