"""What SIGTERM does to a benchmark: it ends, and removes what it has made."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


@contextmanager
def exits_on_sigterm() -> Iterator[None]:
    """Have SIGTERM raise SystemExit in this block, so that it cleans up; a second SIGTERM has no effect."""

    def leave(number: int, frame: Any) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
