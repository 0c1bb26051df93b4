"""Worker processes that leave Ctrl-C to the process that started them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_delayed() -> Iterator[None]:
    """Delay Ctrl-C to the end of this block; processes forked in it ignore Ctrl-C from their first moment."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
