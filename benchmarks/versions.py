"""This project's code beside that of an earlier commit: `python -m benchmarks.versions [COMMIT]`.

Losses, batch norm, colours and a training step (`benchmarks.version_cases`), forward and backward, on one
thread. Each version runs its own cases in its own process. They take turns, and cases of one name must give
equal results. A ratio compares the fastest turns.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import torch

from benchmarks.version_cases import CASES

BEFORE = "7827545"  # the last commit of version 0.2
TURNS = 9
ROOT = Path(__file__).parent.parent
NEEDED = (
    "cl",
    "pipeline",
    "benchmarks/__init__.py",
    "benchmarks/parameters.py",
    "benchmarks/version_cases.py",
)


@click.command()
@click.argument("commit", default=BEFORE)
@click.option("--only", default="", help="Cases whose names contain this.")
@click.option("--tiny", is_flag=True, help="Only try the program; the ratios say nothing.")
def main(commit: str, only: str, tiny: bool) -> None:
    """Compare the speed of this working tree with that of COMMIT."""
    print(f"torch {torch.__version__}, one thread, float32; {commit}'s time / today's, more is better")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _extract(commit, folder)
        with _Version(folder, tiny) as before, _Version(ROOT, tiny) as now:
            for case in CASES:
                if only in case:
                    milliseconds, ratio = _compare(case, before, now, 2 if tiny else TURNS)
                    print(f"{case:48} {milliseconds:9.2f} ms   {ratio:5.2f}", flush=True)


def _extract(commit: str, folder: Path) -> None:
    """The code of a commit.

    Raises:
        ClickException: this clone does not have it.
    """
    archive = ["git", "archive", commit, *NEEDED]
    found = subprocess.run(archive, cwd=ROOT, capture_output=True)
    if found.returncode:
        reason = found.stderr.decode().strip().split("\n")[0]
        raise click.ClickException(
            f"this clone does not give the code of {commit} ({reason}); name another commit"
        )
    subprocess.run(["tar", "-x", "-C", folder], input=found.stdout, check=True)


def _compare(case: str, before: "_Version", now: "_Version", turns: int) -> tuple[float, float]:
    """Milliseconds of today's fastest turn, and how many times as long the other version's takes.

    Raises:
        ClickException: the results differ.
    """
    seconds: dict[_Version, list[float]] = {before: [], now: []}
    results = {}
    for turn in range(turns):
        for version in (before, now) if turn % 2 else (now, before):
            found, numbers = version.measure(case)
            seconds[version].append(found)
            results.setdefault(version, torch.tensor(numbers))
    if not torch.allclose(results[before], results[now], rtol=1e-3):
        raise click.ClickException(f"{case}: {results[now]} today, {results[before]} before")
    return 1000 * min(seconds[now]), min(seconds[before]) / min(seconds[now])


class _Version:
    """A process that measures with the code in a folder."""

    def __init__(self, folder: Path, tiny: bool) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "benchmarks.version_cases"),
                *(str(folder), "tiny" if tiny else "whole"),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "_Version":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def measure(self, case: str) -> tuple[float, list[float]]:
        """The seconds of a call, and at the first time its results.

        Raises:
            ClickException: the process has failed, after saying why.
        """
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{case}\n")
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise click.ClickException(f"{case} failed")
        return tuple(json.loads(line))


if __name__ == "__main__":
    main()
