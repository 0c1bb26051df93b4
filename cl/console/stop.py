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
requests: list[int] = []  # the signals that the last `signals` has received


class StoppedError(Exception):
    """A signal stopped the run; `saved` says whether it can be resumed."""

    def __init__(self, number: int, step: int, *, saved: bool) -> None:
        effect = "continue from there" if saved else "start from the beginning"
        event = f"stopped by {signal.Signals(number).name} after step {step}"
        super().__init__(f"{event}; run the same command again to {effect}")
        self.exit_code = 128 + number


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT in a list, so that a run can finish its step.

    A second Ctrl-C ends the run at once. A second SIGTERM does not, since a launcher may pass on the first.
    """
    requests.clear()

    def note(number: int, frame: Any) -> None:
        if requests and number == signal.SIGINT:
            raise KeyboardInterrupt
        requests.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminate_when_exists(path: Path) -> None:
    """Send this process SIGTERM once the file exists.

    A signal from outside would end DVC and the launchers before the processes they started have saved.
    """

    def watch() -> None:
        while not os.path.exists(path):  # noqa: PTH110  false if a network file system does not respond
            time.sleep(POLL)
        os.kill(os.getpid(), signal.SIGTERM)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:  # inherited from a parent that must not end
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=watch, daemon=True).start()
