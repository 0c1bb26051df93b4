"""Worker processes that ignore Ctrl-C and leave it to their parent process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_delayed() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block; processes forked inside ignore Ctrl-C from their start."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
