"""Data workers as threads of one process, against the ring of processes (`cl.data.ring`).

`python -m benchmarks.threads [folder]` takes images as `benchmarks.loading` does. Both kinds of workers fill
the same steps in slices of as many rows, with as many slices queued, in turns. Decoding and resizing release
the GIL; the rest of a worker's Python does not. With spdl installed, its thread pool takes part.

rate: images per second, the median turn; / ring: the median of the ratios within a turn, and their range.
memory: the proportional set size of the process and its workers, while they work.
main thread: in-place additions per second that the training thread makes meanwhile, with one worker.
"""

import gc
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import psutil
import torch

from benchmarks.loading import BATCH, STORED, TRANSFORM, VIEW, WARM, images, stored
from cl.data import ring, views
from cl.data.order import Plan
from cl.data.sets import TrainSet

TURNS = 5
STEPS = {"originals": 4, "short side 256": 12, "raw 256": 20}  # timed in each turn, per worker
WORKERS = (1, 2)
LAUNCHED = 2.0  # seconds of small additions
STREAM = views._stream.__wrapped__

Batches = Iterator[list[np.ndarray]]
Workers = Callable[[TrainSet, int, int], Batches]


def by_ring(data: TrainSet, steps: int, workers: int) -> Batches:
    yield from ring.filled(data.fill, range(steps), lambda _: BATCH, data.arrays, workers)


def by_threads(data: TrainSet, steps: int, workers: int) -> Batches:
    slices, memory = slices_of(data, steps, workers)
    with ThreadPoolExecutor(workers) as pool:
        fill = partial(fill_slice, data, memory)
        queued = deque(
            pool.submit(fill, item) for _, item in zip(range(ring.AHEAD * workers), slices, strict=False)
        )
        for step in range(steps):
            for _ in range(0, BATCH, ring.SLICE):
                queued.popleft().result()
                queued.extend(pool.submit(fill, item) for _, item in zip(range(1), slices, strict=False))
            yield memory[step % len(memory)]


def by_spdl(data: TrainSet, steps: int, workers: int) -> Batches:
    from spdl.pipeline import PipelineBuilder

    slices, memory = slices_of(data, steps, workers)
    fill = partial(fill_slice, data, memory)
    # What is filled waits in the sink.
    pipeline: Any = (
        PipelineBuilder()
        .add_source(slices)
        .pipe(fill, concurrency=workers, output_order="input")
        .add_sink((ring.AHEAD - 1) * workers)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        filled = iter(pipeline)
        for step in range(steps):
            for _ in range(0, BATCH, ring.SLICE):
                next(filled)
            yield memory[step % len(memory)]


def slices_of(data: TrainSet, steps: int, workers: int) -> tuple[Iterator, list[list[np.ndarray]]]:
    """The slices of all steps, in order, and as many batches' memory as the ring has."""
    slots = min(2 + math.ceil(ring.AHEAD * workers / math.ceil(BATCH / ring.SLICE)), steps)
    memory = [[array.allocate(BATCH, shared=True) for array in data.arrays] for _ in range(slots)]
    return iter(ring._slices(range(steps), lambda _: BATCH, slots)), memory


def fill_slice(data: TrainSet, memory: list[list[np.ndarray]], item: tuple[int, int, slice]) -> bool:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread, as the ring's workers
    step, slot, rows = item
    data.fill(step, rows, [array[rows] for array in memory[slot]])
    return True


class Streams(threading.local):
    """`cl.data.views` moves one random stream per process from image to image; here, each thread has one."""

    def __init__(self) -> None:
        self.of = lru_cache(maxsize=4)(STREAM)


def assert_equal_batches(kind: Workers, data: TrainSet) -> None:
    """Compare two batches with those of one worker without threads."""
    expected = ring.filled(data.fill, range(2), lambda _: BATCH, data.arrays, 0)
    for batch, wanted in zip(kind(data, 2, 2), expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(batch, wanted, strict=True)), kind


def turn(kind: Workers, data: TrainSet, steps: int, workers: int) -> tuple[float, float, float]:
    """Images per second after the first batches, images per second of CPU time, and MiB half-way."""
    gc.collect()  # the memory of the turn before
    batches = kind(data, WARM + steps + workers, workers)  # what is queued at the start is queued at the end
    for _ in range(WARM):
        next(batches)
    began, computed, measuring = time.perf_counter(), cpu_seconds(), 0.0
    for step in range(steps):
        next(batches)
        if step == steps // 2:
            paused = time.perf_counter()
            used = memory_of_all()
            measuring = time.perf_counter() - paused
    seconds, computed = time.perf_counter() - began - measuring, cpu_seconds() - computed
    assert sum(1 for _ in batches) == workers
    return steps * BATCH / seconds, steps * BATCH / computed, used


def cpu_seconds() -> float:
    """CPU time of this process and its workers so far."""
    process = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in [process, *process.children()])


def memory_of_all() -> float:
    """MiB of this process and its workers; pages shared by several count once."""
    process = psutil.Process()
    return sum(each.memory_full_info().pss for each in [process, *process.children()]) / 2**20


def additions(kind: Workers, data: TrainSet) -> float:
    """Thousands of additions per second of this thread while one worker fills batches."""
    batches = kind(data, 10**6, 1)
    number, done = torch.zeros(16), 0
    for _ in range(2):
        next(batches)
    began = time.perf_counter()
    while time.perf_counter() - began < LAUNCHED:
        for _ in range(1000):
            number.add_(1)
        done += 1000
    seconds = time.perf_counter() - began
    batches.close()  # type: ignore[attr-defined]
    return done / 1e3 / seconds


def compare(kinds: dict[str, Workers], name: str, data: TrainSet, workers: int) -> None:
    """Print a row for each kind of workers."""
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    for _ in range(TURNS):
        for kind, run in kinds.items():
            found[kind].append(turn(run, data, STEPS[name] * workers, workers))
    for kind, turns in found.items():
        ratios = [mine[0] / ours[0] for mine, ours in zip(turns, found["ring"], strict=True)]
        rate, per_core, memory = (median(values) for values in zip(*turns, strict=True))
        spread = f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(
            f"| {name} | {workers} | {kind} | {rate:,.0f} | {spread} | {per_core:,.0f} | {memory:,.0f} |",
            flush=True,
        )


def main() -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    streams = Streams()
    views._stream = lambda seed: streams.of(seed)  # type: ignore[assignment]
    kinds: dict[str, Workers] = {"ring": by_ring, "threads": by_threads}
    try:
        import spdl.pipeline  # noqa: F401

        kinds["spdl"] = by_spdl
    except ImportError:
        print("spdl is not installed; not compared")
    with TemporaryDirectory() as name:
        files = images(Path(name))
        sets = {}
        for kind, settings in STORED.items():
            assert isinstance(settings, dict)
            reader = stored(files * -(-BATCH // len(files)), Path(name) / kind, settings)
            sets[kind] = TrainSet(reader, TRANSFORM, [VIEW], Plan(len(reader), BATCH, 0))
        for run in kinds.values():
            assert_equal_batches(run, sets["originals"])
        print("| images | workers | | rate | / ring | per CPU second | MiB |\n" + "|---" * 7 + "|")
        for kind, data in sets.items():
            for workers in WORKERS:
                compare(kinds, kind, data, workers)
        for kind in (*kinds, *kinds):
            rate = additions(kinds[kind], sets["originals"])
            print(f"main thread beside one worker, {kind}: {rate:.0f} thousand additions/s", flush=True)


if __name__ == "__main__":
    main()
