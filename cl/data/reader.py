"""Shards, as `cl.shards.manifest` describes them, read in any order: from this machine, or from a URL (`cl.data.remote`)."""

import mmap
import os
from collections import OrderedDict
from functools import cached_property
from pathlib import Path

import numpy as np

from cl.data.cache import Cache
from cl.data.remote import RemoteFolder
from cl.shards import images
from cl.shards.manifest import INDEX, Manifest, Shard
from cl.sources import UNLABELLED

OPEN = 256  # shards that a process keeps open, with two files each: ImageNet has more than it may open
AGAIN = "run `dvc repro prepare` again"


class Reader:
    """Random access to the images of one split by their position in the index.

    Raises:
        ValueError: the folder is no complete set of shards, or a shard is not, or no longer, what the manifest says.
    """

    def __init__(self, folder: Path | str, split: str, cache: Cache | None = None) -> None:
        self._folder, self._split = folder_at(folder, cache), split
        try:
            self.manifest = Manifest.model_validate_json(self._folder.manifest)
            shards = self.manifest.splits[split].shards
        except (ValueError, KeyError) as error:
            raise ValueError(f"{folder}/manifest.json is damaged: {AGAIN}") from error
        self.index = _rows(self._folder.path(f"{split}.npy"))
        if self.index.dtype != INDEX or self.index.ndim != 1 or not shards:
            raise ValueError(f"{folder}/{split}.npy is no index of the shards: {AGAIN}")
        stops = np.cumsum([shard.images for shard in shards], dtype=np.int64)
        ends = np.concatenate([stops - [shard.images for shard in shards], stops - 1])
        if (
            stops[-1] != len(self.index)
            or (self.index["shard"][ends] != np.tile(np.arange(len(shards)), 2)).any()
        ):
            raise ValueError(
                f"{folder}/{split}.npy with its {len(self.index)} rows does not go with the manifest: {AGAIN}"
            )
        self._sizes = [shard.bytes for shard in shards]
        self._files = self._folder.files(split, shards, self.index)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def remote(self) -> bool:
        """Whether it is of use to say what will be read."""
        return isinstance(self._folder, RemoteFolder)

    def ahead(self, positions: np.ndarray) -> None:
        """Say which positions will be read next, in this order: remote shards are fetched in the background."""
        self._files.ahead(positions)

    @cached_property
    def keys(self) -> np.ndarray:
        """(n,) bytes: the names of the samples."""
        return _rows(self._folder.path(f"{self._split}_keys.npy"))

    @cached_property
    def labels(self) -> np.ndarray:
        """(n,) int64; UNLABELLED where there is none."""
        return self.index["label"].astype(np.int64)

    @property
    def labelled(self) -> np.ndarray:
        """The positions of the images that have a label, in the order of the index; (m,) int64."""
        return np.flatnonzero(self.index["label"] != UNLABELLED)

    def read(self, position: int) -> memoryview:
        """The stored bytes at `position` of the index: an image file, or pixels."""
        shard, offset, length, _, height, width, _ = self.index[position].item()
        if (
            shard >= len(self._sizes)
            or offset + length > self._sizes[shard]
            or (height and length != height * width * 3)
        ):
            raise ValueError(f"row {position} of {self._split}.npy goes with no shard: {AGAIN}")
        return self._files.read(shard, offset, length)

    def pixels(self, position: int) -> np.ndarray:
        """(H, W, 3) uint8, perhaps read-only."""
        *_, height, width, orientation = self.index[position].item()
        content = self.read(position)
        if height:
            return np.frombuffer(content, np.uint8).reshape(height, width, 3)
        try:
            pixels = images.decode(content)
        except Exception as error:  # of whatever type the decoder chooses
            raise ValueError(
                f"{self.keys[position].decode()} cannot be decoded ({error}): prepare again with dataset.verify=true"
            ) from error
        return pixels if orientation == 1 else np.ascontiguousarray(images.turn(pixels, orientation))


def folder_at(place: Path | str, cache: Cache | None = None) -> "LocalFolder | RemoteFolder":
    """The folder of shards at a path, or at a URL, for which there must be a cache.

    Raises:
        ValueError: there are no shards.
    """
    if "://" in str(place):
        assert cache
        return RemoteFolder(str(place), cache)
    return LocalFolder(Path(place))


def _rows(path: Path) -> np.ndarray:
    """An array that lies on the disk and is shared by all processes."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except Exception as error:  # NumPy may raise anything on damaged bytes
        raise ValueError(f"{path} is damaged: {AGAIN}") from error


class LocalFolder:
    """A folder of shards of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "manifest.json").is_file():
            raise ValueError(f"no shards in {folder}: run `dvc repro prepare` first")
        self.manifest = (folder / "manifest.json").read_bytes()

    def path(self, name: str) -> Path:
        """Where the file `name` lies."""
        if not (self.folder / name).is_file():
            raise ValueError(f"no {self.folder / name}: {AGAIN}")
        return self.folder / name

    def files(self, split: str, shards: list[Shard], index: np.ndarray) -> "LocalFiles":
        """The shards of a split."""
        return LocalFiles(self.folder, shards)


class LocalFiles:
    """Shards in a folder of this machine; one that changes after this object was made is noticed."""

    def __init__(self, folder: Path, shards: list[Shard]) -> None:
        self._paths = [folder / shard.name for shard in shards]
        self._found = [_state(path.stat()) if path.is_file() else None for path in self._paths]
        for path, shard, found in zip(self._paths, shards, self._found, strict=True):
            size = found and found[0]
            if size != shard.bytes:
                raise ValueError(f"{path} has {size} bytes, its manifest says {shard.bytes}: {AGAIN}")
        self._open: OrderedDict[int, tuple[int, mmap.mmap]] = (
            OrderedDict()
        )  # of this process, the least used first

    def ahead(self, positions: np.ndarray) -> None:
        """Nothing: the kernel reads ahead."""

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_open": OrderedDict()}

    def read(self, shard: int, offset: int, length: int) -> memoryview:
        """`length` bytes of a shard from `offset` on, as they lie in the page cache."""
        if shard not in self._open:
            if len(self._open) == OPEN:
                os.close(self._open.popitem(last=False)[1][0])
            file = os.open(self._paths[shard], os.O_RDONLY)
            self._open[shard] = file, mmap.mmap(file, 0, prot=mmap.PROT_READ)
        self._open.move_to_end(shard)
        file, content = self._open[shard]
        if _state(os.fstat(file)) != self._found[shard]:
            raise ValueError(f"{self._paths[shard]} was changed while it was read: start again")
        return memoryview(content)[offset : offset + length]


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
