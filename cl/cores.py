"""How many cores there are to use."""

import os


def cores() -> int:
    """The cores that this process may use, which on a cluster are not all of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
