"""One command for whoever has a GPU for 15 minutes: `make gpu-day`, or `python -m benchmarks.gpu.day`.

It checks results, measures speed, and writes both into docs/results/gpu.md. Each part is a process with a
time limit, so a part that hangs or crashes costs no more than its limit.
"""

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.gpu import check, speed
from benchmarks.gpu.session import Session, read, short
from benchmarks.sigterm import exits_on_sigterm
from cl.console.command import entry_point
from cl.runtime import machine
from pipeline.support import provenance

Row = dict[str, Any]
Part = Callable[[Session], None]
PARTS: dict[str, Part] = {
    f"{module.__name__.rpartition('.')[2]}.{part.__name__}": part
    for module in (check, speed)
    for part in module.PARTS
}
# Minutes of 15 that a part may take; they overlap, as most parts need less. LEAST: seconds of a short day.
MINUTES = {
    "check.methods": 3.0,
    "check.resume": 2.0,
    "check.ranks": 2.0,
    "speed.step": 3.0,
    "speed.cifar10": 4.0,
    "speed.compiled": 3.0,
}
OVERLAP, LEAST = 2.0, 30.0
MEASURED = 0.4  # of the time, what checks leave to measurements
IN_TIME = 0.7  # of its limit, a part begins no further case
GAIN = 1.1  # times as fast, from which on a default should change
ALL, NO_TIME, CUT = "the whole part", "not run: no time left", "not finished: no time left"
NO_GPU = "no GPU: this only tries itself at a tiny size on the CPU, and its figures say nothing"
PAGE, HEADING = Path("docs/results/gpu.md"), "## Measured\n"
NOT_FIGURES = ("part", "what", "passed", "note", "error")
# Parts are forked from a process that has imported them but not started CUDA.
CONTEXT = get_context("forkserver")


@click.command()
@click.argument("chosen", metavar="[PARTS]...", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=15.0, show_default=True)
@click.option("--to", type=click.Path(path_type=Path), help="Write the results into this page.")
@entry_point
def main(chosen: tuple[str, ...], minutes: float, to: Path | None) -> None:
    """Check results on a GPU, then measure its speed; exit with 1 if a part fails.

    Without PARTS, such as check.methods, all run, and docs/results/gpu.md gets the results of a GPU.
    check.card, which names the card, always runs.
    """
    device = torch.device("cuda" if machine.gpus() else "cpu")
    if device.type == "cpu":
        print(NO_GPU)
    elif not chosen:
        to = to or PAGE
    parts = {name: PARTS[name] for name in PARTS if not chosen or name in ("check.card", *chosen)}
    rows = run(parts, device, 60 * minutes)
    found = conclusions(rows, device)
    if to:
        to.write_text(with_section(to.read_text() if to.exists() else "", section(rows, found, minutes)))
        print(f"written: {to}")
    print("\n".join(["", *found]))
    sys.exit(any(row["passed"] is False for row in rows))


def run(parts: dict[str, Part], device: torch.device, seconds: float) -> list[Row]:
    """The results of the parts, one after another, until the time is over."""
    CONTEXT.set_forkserver_preload(["benchmarks.gpu.check", "benchmarks.gpu.speed"])
    end = time.monotonic() + seconds
    minutes = {name: MINUTES.get(name, 1.0) for name in parts}
    reserved = MEASURED * seconds if any(name.startswith("speed.") for name in parts) else 0.0
    with exits_on_sigterm(), tempfile.TemporaryDirectory(prefix="gpu-day-") as folder:
        output = Path(folder) / "results.jsonl"
        for name, part in parts.items():
            share = max(LEAST, OVERLAP * minutes[name] / sum(minutes.values()) * seconds)
            left = end - time.monotonic() - (reserved if name.startswith("check.") else 0.0)
            session = Session(device, output, name, time.monotonic() + IN_TIME * min(left, share))
            began = time.monotonic()
            try:
                if left > 0:
                    supervise(part, session, min(left, share))
                else:
                    session.report(ALL, note=NO_TIME)
            except TimeoutError as error:
                if name.startswith("check.") and left > share:
                    session.report(ALL, False, error=str(error))
                else:
                    session.report(ALL, note=CUT)
            except ChildProcessError as error:
                session.report(ALL, False, error=str(error))
            except (KeyboardInterrupt, SystemExit):
                session.report(ALL, False, error="stopped by a signal; later parts did not run")
                break
            print(f"     {name} took {time.monotonic() - began:.0f} s", flush=True)
        return read(output)


def supervise(part: Part, session: Session, limit: float) -> None:
    """Run a part in a process of its own, and end all that it has started.

    Raises:
        ChildProcessError: it crashed; the message is the last line of its errors.
        TimeoutError: it took longer than `limit` seconds.
    """
    errors = session.output.with_name("errors.txt")
    errors.write_text("")
    process = CONTEXT.Process(target=_run, args=(part, session, errors))
    process.start()
    try:
        process.join(limit)
        late = process.is_alive()
    finally:
        assert process.pid is not None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its data workers and ranks
        process.kill()
        process.join()
    text = errors.read_text(errors="replace")
    print(text, file=sys.stderr, end="")
    if late:
        raise TimeoutError(f"stopped at its limit of {limit:.0f} s")
    if process.exitcode:
        raise ChildProcessError((text.strip() or f"exit code {process.exitcode}").splitlines()[-1])


def _run(part: Part, session: Session, errors: Path) -> None:
    os.setsid()
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    os.environ["TMPDIR"] = tempfile.tempdir = str(session.output.parent)  # removed whatever happens here
    if session.tiny:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with session.attempt(ALL):
        part(session)


def conclusions(rows: list[Row], device: torch.device) -> list[str]:
    """What failed, what is missing, and which choices are faster or slower on a GPU, in a sentence each."""
    found = [] if device.type == "cuda" else [NO_GPU]
    found += [
        f"**failed**: {row['part']}, {row['what']}: {row.get('error') or 'not as on the CPU'}"
        for row in rows
        if row["passed"] is False
    ]
    notes = {f"{row['part']}, {row['what']}": row["note"] for row in rows if "note" in row}
    found += [f"{what}: {note}" for what, note in notes.items() if note not in (CUT, NO_TIME)]
    for note, state in ((CUT, "not finished"), (NO_TIME, "not run")):
        if missing := [row["part"] for row in rows if row.get("note") == note]:
            found.append(f"{state}, as the time was over: {', '.join(missing)}")
    for row in rows if device.type == "cuda" else ():
        gain = row.get("times_as_fast", 1.0)
        if not 1 / GAIN < gain < GAIN:
            advice = "use it on GPUs" if gain > 1 else "do not use it on GPUs"
            found.append(f"{row['setting']} is {gain:.2g} times as fast ({row['what']}): {advice}")
    return found


def section(rows: list[Row], found: list[str], minutes: float) -> str:
    """The results and what was found, in Markdown."""
    commit, changed = provenance.code()
    card = next((row for row in rows if row["what"] == "card"), {})
    lines = [
        HEADING,
        f"Written by `benchmarks.gpu.day --minutes {minutes:g}` on {datetime.now(UTC):%Y-%m-%d}, "
        f"at commit {(commit or 'unknown')[:7]}{' with changes' if changed else ''}, on: "
        + ", ".join(f"{name} {short(value)}" for name, value in _figures(card).items())
        + ".",
        "",
        *(f"- {sentence}" for sentence in found),
        "",
        *_table(["check", "right", "wrong"], _counts(rows)),
    ]
    for part in dict.fromkeys(row["part"] for row in rows if row["part"].startswith("speed.")):
        measured = [row for row in rows if row["part"] == part and _figures(row)]
        names = list(dict.fromkeys(name for row in measured for name in _figures(row)))
        cells = [[row["what"], *(short(row.get(name, "")) for name in names)] for row in measured]
        lines += ["", f"**{part}**", "", *_table(["", *names], cells)] if measured else []
    return "\n".join(lines) + "\n"


def with_section(page: str, text: str) -> str:
    """The page with this text instead of its section of the same heading, or at its end."""
    before, heading, after = page.partition(HEADING)
    if not heading:
        return f"{page.rstrip()}\n\n{text}".lstrip()
    _, following, rest = after.partition("\n## ")
    return before + text + following + rest


def _figures(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in NOT_FIGURES}


def _counts(rows: list[Row]) -> list[list[str]]:
    """How many results of each check are right and wrong."""
    checks = dict.fromkeys(row["part"] for row in rows if row["passed"] is not None)
    counts = Counter((row["part"], row["passed"]) for row in rows)
    return [[part, str(counts[part, True]), str(counts[part, False])] for part in checks]


def _table(titles: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *rows)]


if __name__ == "__main__":
    main()
