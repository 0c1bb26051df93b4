"""The processes that prepare a data set."""

from dataclasses import dataclass

from cl.console.progress import Count, silent


@dataclass(frozen=True)
class Team:
    """`workers` processes or threads, which do not affect results; `count` shows the progress of a pass."""

    workers: int = 1
    count: Count = silent
