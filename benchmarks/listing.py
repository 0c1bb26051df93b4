"""Millions of synthetic file names through listing, order and index: seconds, and memory per image.

`python -m benchmarks.listing [IMAGES]` lists them as `dataset=unlabelled` does, without files: names of 44
characters in folders of 1,000, in random order. Then it plans the shards, and maps an index of as many rows.
Memory is what this process has allocated for itself at its peak, above what it had before (`RssAnon`): files
that are mapped are not counted, because the kernel may drop them.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.parameters import parameters
from cl.data.order import Plan
from cl.shards import writing
from cl.shards.manifest import INDEX
from cl.shards.team import Team
from cl.sources import Splits, Storage, unlabelled
from cl.sources._shared import trees

EVERY = 0.02  # seconds between looks at the memory
SEED = 2**31 - 1  # a prime: multiples of it, modulo the number of images, visit each once


def main() -> None:
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 10**7
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = parameters("dataset=unlabelled", "dataset.name=own").dataset
        found = _measured("list, sorted on disk", images, lambda: listed(source, images))
        _measured("plan shards: keys, order", images, lambda: planned(found, source, folder))
        path = folder / "train.npy"
        np.save(path, np.zeros(images, INDEX))
        _measured("map the index, and the first step", images, lambda: first_step(path, images))


def names(images: int) -> Iterator[tuple[str, str]]:
    """The path and status of each image, in no order."""
    for place in range(images):
        number = place * SEED % images
        yield f"camera-{number % 97:02d}/{number // 1000:07d}/picture-{number:012d}.jpg", "104000 1700000000"


def listed(source: Any, images: int) -> Splits:
    """As `dataset=unlabelled` lists files."""
    with (
        patch.object(trees, "_files_below", lambda root, left_out: names(images)),
        patch.object(type(source), "check_present", lambda *_: None),
    ):
        return unlabelled.splits(source, Path("raw"))


def planned(found: Splits, storage: Storage, folder: Path) -> None:
    """Which image goes into which shard, and a digest of all."""
    work = writing._plan(found, storage, folder, Team())
    work.listed(work.jobs("train")[-1])
    work._digest("unlabelled")


def first_step(path: Path, images: int) -> None:
    index = np.load(path, mmap_mode="r")
    _, positions = Plan(images, min(images, 4096), 0).step(0)
    index["offset"][positions].sum()


def _measured(what: str, images: int, action: Callable[[], Any]) -> Any:
    """Run an action, and print what it took."""
    before, began, largest, done = _allocated(), time.perf_counter(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(EVERY):
            largest[0] = max(largest[0], _allocated())

    watcher = threading.Thread(target=watch)
    watcher.start()
    found = action()
    done.set()
    watcher.join()
    seconds, used = time.perf_counter() - began, max(0, largest[0] - before)
    print(
        f"{what:36} {images:>13,} images {seconds:8.1f} s {used / 2**20:8.0f} MiB "
        f"{used / images:6.0f} bytes per image",
        flush=True,
    )
    return found


def _allocated() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
