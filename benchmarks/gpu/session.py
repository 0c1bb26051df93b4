"""What checks and measurements share: the device, results, seconds, memory and kernel launches."""

import json
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

T = TypeVar("T")
WARM, REPEATS = 2, 5
EVENTS = {
    "launches": ("cudaLaunchKernel", "cuLaunchKernel"),
    "stream_waits": ("cudaStreamSynchronize", "cudaEventSynchronize"),
    "device_waits": ("cudaDeviceSynchronize",),
    "copies": ("cudaMemcpyAsync",),
}  # parts of the profiler's names


@dataclass
class Session:
    """One part of the day: its device, and where its results go. On a CPU, everything runs at a tiny size."""

    device: torch.device
    output: Path
    part: str
    end: float = math.inf  # on the clock of `time.monotonic`; after it, no further case begins

    @property
    def tiny(self) -> bool:
        """Whether this only tries the program."""
        return self.device.type == "cpu"

    def report(self, what: str, passed: bool | None = None, **numbers: Any) -> None:
        """Print a result, and append it to `output` as a line of JSON; `passed` is None for a measurement.

        `setting` and `times_as_fast` say what a choice of the user gains.
        """
        sign = {True: "ok", False: "FAIL", None: ""}[passed]
        values = "  ".join(f"{name}={short(value)}" for name, value in numbers.items())
        print(f"{sign:4} {self.part:18} {what:60} {values}", flush=True)
        row = {"part": self.part, "what": what, "passed": passed, **numbers}
        with self.output.open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")

    def found(self, part: str, what: str) -> dict[str, Any]:
        """An earlier result, also of another part; empty if there is none."""
        rows = (row for row in read(self.output) if (row["part"], row["what"]) == (part, what))
        return next(rows, {})

    def in_time(self, cases: Iterable[T]) -> Iterator[T]:
        """The cases, until the time is over."""
        for number, case in enumerate(cases):
            if time.monotonic() > self.end:
                self.report(f"all but {number} cases", note="no time left")
                return
            yield case

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Report an exception as a failure and continue with the next case."""
        try:
            yield
        except torch.cuda.OutOfMemoryError:
            self.report(what, note="out of memory")
        except Exception as error:
            traceback.print_exc()
            self.report(what, False, error=f"{type(error).__name__}: {error}".splitlines()[0])
        if not self.tiny:
            torch.cuda.empty_cache()

    def synchronise(self) -> None:
        """Wait for the device."""
        if not self.tiny:
            torch.cuda.synchronize()

    def seconds(self, function: Callable[[], object], repeats: int = REPEATS, warm: int = WARM) -> float:
        """The median time of a call, after some calls that do not count."""
        repeats, warm = (1, 0) if self.tiny else (repeats, warm)
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


def read(output: Path) -> list[dict[str, Any]]:
    """The results in a file."""
    return [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []


def short(value: Any) -> str:
    """A number of four digits, or anything else as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
