"""The sorted names of the images below a folder, stored in a file and read a range at a time."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cl.sources._shared.trees import images_below

OFFSET = np.dtype("<i8")


@dataclass(frozen=True)
class Listing:
    """The sorted names of the images below `root`, relative to it; `write` stores them in `folder`."""

    root: Path
    folder: Path

    @property
    def _names(self) -> Path:
        return self.folder / "names.txt"

    @property
    def _offsets(self) -> Path:
        """The file with the start of each name's line in the file of names, and the end of the last line."""
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
            A hash of names, sizes and modification times, and the number of other files by reason.

        Raises:
            ValueError: a name contains a line break or is not valid UTF-8, or a folder is a link.
        """
        sha, left_out, end = hashlib.sha256(), Counter[str](), 0
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._names.open("wb") as names, self._offsets.open("wb") as offsets:
            for name, status in images_below(self.root.resolve(), "", left_out):
                sha.update(f"{name}\0{status}\n".encode())
                offsets.write(end.to_bytes(OFFSET.itemsize, "little"))
                end += names.write(name.encode() + b"\n")
            offsets.write(end.to_bytes(OFFSET.itemsize, "little"))
        return sha.hexdigest(), left_out
