"""The sorted names of the images below a folder, kept in a file and read a range at a time."""

import hashlib
import heapq
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl.runtime.files import UNREACHABLE
from cl.sources._shared.trees import image_entries

RUN = 100_000  # names that are sorted in memory at a time
OFFSET = np.dtype("<i8")


@dataclass(frozen=True)
class Listing:
    """The sorted names of the images below `root`, relative to it, as `write` left them in `folder`."""

    root: Path
    folder: Path

    @property
    def _names(self) -> Path:
        return self.folder / "names.txt"

    @property
    def _offsets(self) -> Path:
        """Where the line of each name begins in the file of names, and where the last one ends."""
        return self.folder / "offsets"

    def __len__(self) -> int:
        return self._offsets.stat().st_size // OFFSET.itemsize - 1

    def names(self, start: int, stop: int) -> list[str]:
        """The names of images start to stop - 1."""
        offsets = np.fromfile(self._offsets, OFFSET, stop - start + 1, offset=start * OFFSET.itemsize)
        with self._names.open("rb") as file:
            file.seek(int(offsets[0]))
            return file.read(int(offsets[-1] - offsets[0])).decode().split("\n")[:-1]

    def write(self) -> tuple[str, Counter[str]]:
        """List the images.

        Returns:
            A hash of their names, sizes and times of change, and the number of other files by reason.

        Raises:
            ValueError: a name contains a line break or is not valid UTF-8, or a folder is a link.
        """
        sha, left_out, end = hashlib.sha256(), Counter[str](), 0
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._names.open("wb") as names, self._offsets.open("wb") as offsets:
            for line in _sorted(_lines(self.root, left_out), self.folder / "runs"):
                sha.update(line.encode())
                offsets.write(end.to_bytes(OFFSET.itemsize, "little"))
                end += names.write(_name(line).encode() + b"\n")
            offsets.write(end.to_bytes(OFFSET.itemsize, "little"))
        return sha.hexdigest(), left_out


def _lines(root: Path, left_out: Counter[str]) -> Iterator[str]:
    """A line for each image: its name, size and time of change."""
    root = root.resolve()
    for entry in image_entries(root, left_out):
        name = entry.path.removeprefix(os.path.join(root, ""))  # noqa: PTH118, a Path has no trailing slash
        if "\n" in name:
            raise ValueError(f"the name {name!r} contains a line break; rename it")
        try:
            status = entry.stat()
            yield f"{name}\0{status.st_size} {status.st_mtime_ns}\n"
        except OSError as error:  # a broken link, which will be counted as unreadable
            if error.errno not in UNREACHABLE:
                raise
            yield f"{name}\0missing\n"


def _name(line: str) -> str:
    return line.partition("\0")[0]


def _sort_key(line: str) -> list[str]:
    """The parts of the path, so that the images of a folder are together."""
    return _name(line).split("/")


def _sorted(lines: Iterator[str], folder: Path) -> Iterator[str]:
    """The lines, sorted in runs on disk that are then merged."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    runs: list[Path] = []
    while run := sorted(itertools.islice(lines, RUN), key=_sort_key):
        runs.append(folder / f"{len(runs)}")
        runs[-1].write_text("".join(run), encoding="utf-8", newline="\n")
    with ExitStack() as stack:
        files = [stack.enter_context(path.open(encoding="utf-8", newline="\n")) for path in runs]
        yield from heapq.merge(*files, key=_sort_key)
    shutil.rmtree(folder)
