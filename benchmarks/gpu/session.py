"""What checks and measurements share: the device, a table of results, seconds, memory and kernel launches."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from torch.profiler import ProfilerActivity, profile

from cl.console.command import entry_point
from cl.runtime import machine

WARM, REPEATS = 2, 5
EVENTS = {
    "launches": ("cudaLaunchKernel", "cuLaunchKernel"),
    "stream_waits": ("cudaStreamSynchronize", "cudaEventSynchronize"),
    "device_waits": ("cudaDeviceSynchronize",),
    "copies": ("cudaMemcpyAsync",),
}  # parts of the profiler's names


@dataclass
class Session:
    """A device, and the results so far. On a CPU, everything runs at a tiny size, only to try the program."""

    device: torch.device
    output: Path | None = None
    part: str = ""
    failed: list[str] = field(default_factory=list)

    @property
    def tiny(self) -> bool:
        """Whether this only tries the program."""
        return self.device.type == "cpu"

    def report(self, what: str, passed: bool | None = None, **numbers: Any) -> None:
        """Print a result, and append it to `output` as a line of JSON; `passed` is None for a measurement."""
        if passed is False:
            self.failed.append(f"{self.part}: {what}")
        sign = {True: "ok", False: "FAIL", None: ""}[passed]
        values = "  ".join(f"{name}={_short(value)}" for name, value in numbers.items())
        print(f"{sign:4} {self.part:14} {what:60} {values}", flush=True)
        if self.output:
            device = self.device.type
            row = {"part": self.part, "what": what, "passed": passed, "device": device, **numbers}
            with self.output.open("a") as file:
                file.write(json.dumps(row, default=str) + "\n")

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Report an exception as a failure and continue with the next case."""
        try:
            yield
        except torch.cuda.OutOfMemoryError:
            self.report(what, None, out_of_memory=True)
        except Exception as error:
            traceback.print_exc()
            self.report(what, False, error=f"{type(error).__name__}: {error}"[:300])
        if not self.tiny:
            torch.cuda.empty_cache()

    def synchronise(self) -> None:
        """Wait for the device."""
        if not self.tiny:
            torch.cuda.synchronize()

    def seconds(self, function: Callable[[], object], repeats: int = REPEATS, warm: int = WARM) -> float:
        """The median time of a call, after some calls that do not count."""
        for _ in range(warm):
            function()
        times = []
        for _ in range(repeats):
            self.synchronise()
            began = time.perf_counter()
            function()
            self.synchronise()
            times.append(time.perf_counter() - began)
        return sorted(times)[len(times) // 2]

    def mebibytes(self, function: Callable[[], object]) -> float:
        """The peak of what PyTorch allocates on the GPU during a call; NaN on a CPU."""
        if self.tiny:
            function()
            return float("nan")
        self.synchronise()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        self.synchronise()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def profile(self, function: Callable[[], object]) -> tuple[profile, dict[str, int]]:
        """The profile of a call after a first one, and its numbers of kernel launches, waits and copies."""
        activities = [ProfilerActivity.CPU] + ([] if self.tiny else [ProfilerActivity.CUDA])
        function()
        self.synchronise()
        with profile(activities=activities) as found:
            function()
            self.synchronise()
        counts = {event.key: event.count for event in found.key_averages()}
        numbers = {
            name: sum(count for key, count in counts.items() if any(part in key for part in parts))
            for name, parts in EVENTS.items()
        }
        return found, numbers


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected| in float64 on the CPU."""
    found, expected = (x.detach().double().cpu() for x in (found, expected))
    return float((found - expected).norm() / expected.norm().clamp(min=1e-300))


def command(parts: dict[str, Callable[[Session], None]], purpose: str) -> click.Command:
    """A command that runs all parts, or those named; it exits with 1 if a part fails."""

    @click.command(help=f"{purpose} PARTS: {', '.join(parts)} (default: all).")
    @click.argument("chosen", metavar="[PARTS]...", nargs=-1, type=click.Choice(list(parts)))
    @click.option(
        "--device",
        type=click.Choice(["cuda", "cpu"]),
        default="cuda",
        show_default=True,
        help="cpu: only try the program, at a tiny size.",
    )
    @click.option("--output", type=click.Path(path_type=Path), help="Append results here, as lines of JSON.")
    @entry_point
    def main(chosen: tuple[str, ...], device: str, output: Path | None) -> None:
        if device == "cuda" and not machine.gpus():
            raise ValueError(
                "this needs a CUDA GPU, and PyTorch finds none; --device cpu only tries the program"
            )
        if device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        session = Session(torch.device(device), output)
        if session.tiny:
            print("no GPU: all sizes are tiny, and the figures say nothing")
        for name in chosen or parts:
            session.part = name
            with session.attempt("the whole part"):
                parts[name](session)
        for failure in session.failed:
            print(f"FAILED {failure}")
        sys.exit(bool(session.failed))

    return main


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
