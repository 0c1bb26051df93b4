"""The processes that prepare a data set: workers on this machine, and ranks on any machines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cl.console.progress import Count, silent


@dataclass(frozen=True)
class Team:
    """One of `ranks` processes, on any number of machines, that prepare one data set together.

    workers: the processes that this one forks. Results depend neither on workers nor on ranks.
    count: shows the progress of a pass over the images.
    gather: returns the values of all ranks in rank order; ranks wait for each other.
    """

    workers: int = 1
    count: Count = silent
    rank: int = 0
    ranks: int = 1
    gather: Callable[[Any], list[Any]] = lambda mine: [mine]
