"""Lists of images too long for memory: sorted in runs on disk and kept in a file."""

import hashlib
import mmap
import tempfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cl.images.image import UNLABELLED, BandFiles, Image, StoredImage
from cl.runtime.stores import is_url

VALUES = "group", "positive", "within"  # fields of `Image` that name what an image belongs to
MAX_KEY_BYTES = 200  # the longest key decides how much memory each takes


class Keys:
    """The keys of images at relative paths: without suffixes, unless two images would then share a key.

    WebDataset splits a name at its first dot, so other dots become underscores. A hash replaces the end of a
    long key. Each path takes 8 bytes until all have been added, then nothing.
    """

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._repeated: set[int] | None = None

    def add(self, name: str) -> None:
        self._hashes.append(hash_of(_without_suffix(name)))

    def of(self, name: str) -> str:
        """The key of a path, once all have been added."""
        if self._repeated is None:
            self._repeated = set(repeated(np.frombuffer(self._hashes, np.uint64)).tolist())
            self._hashes = array("Q")
        key = _without_suffix(name)
        if self._repeated and hash_of(key) in self._repeated:
            key = f"{key}_{name.rpartition('.')[2]}"
        if len(encoded := key.encode()) <= MAX_KEY_BYTES:
            return key
        end = f"_{hash_of(key):016x}"
        return encoded[: MAX_KEY_BYTES - len(end)].decode(errors="ignore") + end


def _without_suffix(name: str) -> str:
    return name.rpartition(".")[0].replace(".", "_")


def hash_of(key: str) -> int:
    """A 64-bit hash."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")


def repeated(hashes: np.ndarray) -> np.ndarray:
    """The values that occur more than once, sorted."""
    ordered = np.sort(hashes)
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


class Images(Sequence[Image], ABC):
    """A list whose images are created on access."""

    @abstractmethod
    def at(self, position: int) -> Image:
        """The image at a non-negative position."""

    def __getitem__(self, index: Any) -> Any:
        """One image, or the list of a slice's images."""
        chosen = range(len(self))[index]
        return self.at(chosen) if isinstance(chosen, int) else [self.at(position) for position in chosen]


class Listing(Images):
    """Image files below a folder or URL, listed in a temporary file: each takes 8 bytes of memory.

    Add all of them before reading the first. keys: shared by lists in which no two images may have one key.
    bands: their names, if each has its own file.
    """

    def __init__(self, root: Path, keys: Keys | None = None, bands: Sequence[str] = ()) -> None:
        self._root, self._keys, self._bands = str(root).rstrip("/"), keys or Keys(), bands
        self._file, self._ends = tempfile.TemporaryFile(), array("Q", [0])  # noqa: SIM115, stays open
        self._rows: mmap.mmap | None = None

    def add(
        self, name: str, status: str | None, label: int = UNLABELLED, files: Sequence[str] = (), **values: str
    ) -> None:
        """Add a file by its path below the root.

        Args:
            status: the file's size and version; None: look them up later.
            files: of the bands, as `name`.
            values: fields of `Image`: group, positive, within.
        """
        assert self._rows is None
        self._keys.add(name)
        cells = (values.get(each, "") for each in VALUES)
        row = "\0".join((name, status or "", str(label), *cells, *files)).encode()
        self._file.write(row)
        self._ends.append(self._ends[-1] + len(row))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def at(self, position: int) -> Image:
        if self._rows is None:
            self._file.flush()
            self._rows = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self._file.close()
        row = self._rows[self._ends[position] : self._ends[position + 1]]
        name, status, label, *cells = row.decode().split("\0")
        values = dict(zip(VALUES, cells, strict=False))
        place, key = f"{self._root}/{name}", self._keys.of(name)
        if self._bands:
            paths = [Path(self._root, file) for file in cells[len(VALUES) :]]
            files = tuple(zip(self._bands, paths, strict=True))
            return BandFiles(key, Path(place), int(label), files, status=status, **values)
        if is_url(place):
            return StoredImage(key, Path(name), int(label), place, status=status, **values)
        return Image(key, Path(place), int(label), status=status or None, **values)


class Subset(Images):
    """The images at some positions of a list, in the order of the positions."""

    def __init__(self, listed: Sequence[Image], positions: np.ndarray) -> None:
        self._listed, self._positions = listed, positions

    def __len__(self) -> int:
        return len(self._positions)

    def at(self, position: int) -> Image:
        return self._listed[int(self._positions[position])]
