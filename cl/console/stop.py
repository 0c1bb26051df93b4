"""Stopping a run between two steps when a signal asks for it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

POLL = 0.5  # seconds


class StoppedError(Exception):
    """The run was asked to stop by a signal, and has saved what it needs to go on."""

    def __init__(self, number: int, step: int, *, saved: bool) -> None:
        then = "run the same command again to continue from there" if saved else "it starts anew next time"
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}; {then}")
        self.exit_code = 128 + number


@contextmanager
def signals() -> Iterator[list[int]]:
    """A list that receives the number of SIGTERM or SIGINT, so that a step is never cut in two; a second Ctrl-C ends at once.

    SIGTERM may well come twice: from a cluster's scheduler, and from a launcher that passes it on.
    """
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminate_when_exists(path: Path) -> None:
    """Have this process get SIGTERM as soon as a file is there, whatever stands between it and who makes the file.

    A signal would have to pass DVC and launchers, which it ends before the processes below them have saved.
    """

    def look() -> None:
        while not os.path.exists(path):  # noqa: PTH110  false where a network's file system does not answer
            time.sleep(POLL)
        os.kill(os.getpid(), signal.SIGTERM)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:  # handed down by one that must not end
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=look, daemon=True).start()
