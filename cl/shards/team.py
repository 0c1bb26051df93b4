"""Who prepares a data set: the worker processes of this machine, and other machines that share the work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cl.console.progress import Count, silent


@dataclass(frozen=True)
class Team:
    """One of `ranks` processes, on any number of machines, that prepare the same data set together.

    workers: how many processes this one forks; results do not depend on it, nor on the number of ranks.
    count: shows the progress of a pass over the images.
    gather: the values of all ranks, in their order; ranks wait for each other.
    """

    workers: int = 1
    count: Count = silent
    rank: int = 0
    ranks: int = 1
    gather: Callable[[Any], list[Any]] = lambda mine: [mine]
