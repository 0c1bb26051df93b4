"""A pseudo-terminal of 80 columns, and what `python -m tests.support.terminal` shows on it: a short training.

With an argument, a count with that unit instead.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

from cl.console.progress import Progress
from tests.support.project import ROOT

COLUMNS = 80
ESCAPES = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")


def on_a_terminal(*command: str) -> tuple[list[str], list[str]]:
    """What the command leaves on a terminal above its last line, and what the last line showed over time."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        output = b"".join(iter(lambda: _read(ours), b"")).decode()
    assert process.returncode == 0, output
    lines, last = [], []
    for line in re.sub(r"\x1b\[2K", "", output).split("\r\n"):
        *drawn, end = ESCAPES.sub("", line).split("\r")
        last += drawn
        lines.append(end)
    return lines, last


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # the command has ended
        return b""


def train() -> None:
    """Three epochs with long numbers, on a terminal."""
    steps, per_epoch = 300_000, 100_000
    with Progress("pretrain").task(steps, 0, per_epoch) as meter:
        for done in range(per_epoch, steps + 1, per_epoch):
            meter.done = done - 3
            for _ in range(3):
                time.sleep(0.1)
                meter.step(4096, 12.3456, 0.0123)
            row = {"epoch": done // per_epoch, "step": done, "loss": 12.3456, "lr": 0.0123, **meter.rates()}
            meter.epoch({**row, "knn_top1": 67.89, "knn_embedding_top1": 65.43, "effective_rank": 123.4})


def count(unit: str) -> None:
    """A long count, on a terminal."""
    total = 100_000_000
    with Progress("embed").count(total, unit) as report:
        for _ in range(3):
            time.sleep(0.2)
            report(total // 4)


if __name__ == "__main__":
    count(*sys.argv[1:]) if sys.argv[1:] else train()
