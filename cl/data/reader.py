"""Random access to shards (`cl.shards.manifest`) on this machine or in a store (`cl.data.remote`)."""

import hashlib
import io
import mmap
import os
from collections import OrderedDict
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cl.data.cache import Cache
from cl.data.remote import RemoteFiles
from cl.images import decoding
from cl.runtime import stores
from cl.shards.manifest import INDEX, Manifest, Shard, sha256_of

OPEN = 256  # shards kept open per process, with two descriptors each: ImageNet would exceed the limit
AGAIN = "run `dvc repro prepare` again"


class Reader:
    """Random access to the images of one split by their position in the index.

    Args:
        folder: of the manifest and the index, and of the shards unless they are in a store.
        store: the folder or URL of the shards.
        cache: for shards at a URL.

    Raises:
        ValueError: a shard is missing, does not match the manifest, or changed while in use.
    """

    def __init__(
        self, folder: Path, split: str, store: str | None = None, cache: Cache | None = None
    ) -> None:
        self._folder, self._split = folder, split
        content = manifest(folder)
        try:
            self.manifest = Manifest.model_validate_json(content)
            shards = self.manifest.splits[split].shards
        except (ValueError, KeyError) as error:
            raise ValueError(f"{folder}/manifest.json is damaged: {AGAIN}") from error
        if self.manifest.classes_sha256 != sha256_of(self.manifest.classes):
            raise ValueError(f"the classes in {folder}/manifest.json were changed: {AGAIN}")
        self.index = _rows(folder / f"{split}.npy")
        if not _matches(self.index, shards):
            raise ValueError(f"{folder}/{split}.npy does not match the manifest: {AGAIN}")
        self._sizes = [shard.bytes for shard in shards]
        bands = self.manifest.bands
        self._dtype = np.dtype(bands.dtype if bands else np.uint8)
        self._pixel_bytes = self._dtype.itemsize * (len(bands.names) if bands else 3)
        self._files: LocalFiles | RemoteFiles
        if store and stores.is_url(store):
            assert cache
            cached_in = f"{hashlib.sha256(store.encode() + content).hexdigest()}/{split}"
            self._files = RemoteFiles(store, cache, cached_in, shards, self.index)
        else:
            self._files = LocalFiles(Path(store) if store else folder, shards)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def remote(self) -> bool:
        """Whether `prefetch` has an effect."""
        return isinstance(self._files, RemoteFiles)

    def prefetch(self, positions: np.ndarray) -> None:
        """Fetch the images at these positions in the background, in order, if the shards are remote."""
        self._files.prefetch(positions)

    @cached_property
    def keys(self) -> np.ndarray:
        """(n,) bytes: the names of the samples."""
        keys = _rows(self._folder / f"{self._split}_keys.npy")
        if keys.dtype.kind != "S" or keys.shape != self.index.shape:
            raise ValueError(f"{self._split}_keys.npy does not have a name for each image: {AGAIN}")
        return keys

    def labels(self, positions: np.ndarray | slice | int = slice(None)) -> np.ndarray:
        """(m,) int64: the labels at positions of the index; -1 for images without a label."""
        labels = self.index["label"][positions].astype(np.int64)
        if ((labels < -1) | (labels >= len(self.manifest.classes))).any():
            raise ValueError(f"{self._split}.npy has labels that are not of the manifest's classes: {AGAIN}")
        return labels

    @cached_property
    def groups(self) -> np.ndarray | None:
        """(n,) int64: the group of each image, -1 for none; None for data without groups."""
        if self.manifest.splits[self._split].groups is None:
            return None
        return _rows(self._folder / f"{self._split}_groups.npy")

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """(n,) int64 for `positive` and `within`, where the data has them: equal for images of one value.

        An image without a value has a number of its own.
        """
        found = {}
        for role in self.manifest.splits[self._split].values:
            numbers = _rows(self._folder / f"{self._split}_{role}.npy")
            found[role] = np.where(numbers < 0, -1 - np.arange(len(numbers)), numbers)
        return found

    @cached_property
    def never_negatives(self) -> np.ndarray | None:
        """(n,) int64: `Batch.groups` of all images, which a group or a value of `positive` connects."""
        groups = self.groups
        # Otherwise, older keys of an image without a value would be its negatives.
        if groups is None and "within" in self.values:
            groups = np.full(len(self), -1)
        return _connected(groups, self.values.get("positive"))

    @property
    def labelled(self) -> np.ndarray:
        """(m,) int64: the positions of the labelled images, ascending."""
        if not self.manifest.classes:  # saves reading the index of a billion images
            return np.empty(0, np.int64)
        return np.flatnonzero(self.index["label"] >= 0)

    def evaluated(self, most: int | None = None) -> np.ndarray:
        """The positions of at most `most` labelled images, or images of data without labels; None: all."""
        if not self.manifest.classes:
            return self.part(len(self), most)
        labelled = self.labelled
        return labelled[self.part(len(labelled), most)]

    def part(self, images: int, most: int | None = None) -> np.ndarray:
        """(m,) int64, ascending: the places in a list of `images` of a random sample of at most `most`.

        Shards are shuffled, so these are the first, unless tiles of one image lie beside each other.
        """
        count = images if most is None else min(most, images)
        if not self.manifest.storage.get("tile"):
            return np.arange(count)
        rng = np.random.Generator(np.random.Philox(key=images))
        return np.sort(rng.choice(images, count, replace=False))

    def read(self, position: int) -> memoryview:
        """The stored bytes of an image: a file, or pixels."""
        shard, offset, length, _, height, width, _ = self.index[position].item()
        if (
            shard >= len(self._sizes)
            or offset + length > self._sizes[shard]
            or (height and length != height * width * self._pixel_bytes)
        ):
            raise ValueError(f"row {position} of {self._split}.npy does not match its shard: {AGAIN}")
        return self._files.read(shard, offset, length)

    def taken_at(self, position: int) -> float:
        """When a camera took the image, as `cl.images.decoding.taken_at` says; NaN for stored pixels."""
        return decoding.taken_at(io.BytesIO(self.read(position)))

    def pixels(self, position: int) -> np.ndarray:
        """(H, W, 3) uint8, or (H, W, C) of `manifest.bands`; possibly read-only."""
        *_, height, width, orientation = self.index[position].item()
        content = self.read(position)
        if height:
            return np.frombuffer(content, self._dtype).reshape(height, width, -1)
        try:
            pixels = decoding.decode(content, levels=self.manifest.levels)
        except Exception as error:  # decoders raise errors of any type
            key = self.keys[position].decode()
            raise ValueError(
                f"{key} cannot be decoded ({error}): prepare again with dataset.verify=true"
            ) from error
        return pixels if orientation == 1 else np.ascontiguousarray(decoding.turn(pixels, orientation))


def manifest(folder: Path) -> bytes:
    """The bytes of a folder's manifest; raises ValueError if there is none."""
    if not (folder / "manifest.json").is_file():
        raise ValueError(f"no shards in {folder}: run `dvc repro prepare` first")
    return (folder / "manifest.json").read_bytes()


def _matches(index: np.ndarray, shards: list[Shard]) -> bool:
    """Whether the index has one row per image, and each shard's first and last row point to the shard."""
    counts = np.array([shard.images for shard in shards], np.int64)
    stops = np.cumsum(counts)
    if index.dtype != INDEX or index.ndim != 1 or not shards or stops[-1] != len(index):
        return False
    numbers = np.arange(len(shards))
    firsts, lasts = stops - counts, stops - 1
    return bool((index["shard"][firsts] == numbers).all() and (index["shard"][lasts] == numbers).all())


def _rows(path: Path) -> np.ndarray:
    """A memory-mapped array, shared by all processes."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: {AGAIN}")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except Exception as error:  # NumPy may raise anything on damaged bytes
        raise ValueError(f"{path} is damaged: {AGAIN}") from error


def _connected(groups: np.ndarray | None, positive: np.ndarray | None) -> np.ndarray | None:
    """(n,) int64: equal numbers for images that a group or a value connects; below 0: an image by itself."""
    if groups is None or positive is None:
        return positive if groups is None else groups
    first, both = int(groups.max()) + 1, (groups >= 0) & (positive >= 0)
    edges = groups[both], first + positive[both]
    nodes = first + max(int(positive.max()) + 1, 0)  # groups, then values
    graph = coo_array((np.ones(len(edges[0])), edges), shape=(nodes, nodes))
    connected = connected_components(graph, directed=False)[1].astype(np.int64)
    known = np.where(groups >= 0, groups, first + positive)
    return np.where((groups < 0) & (positive < 0), -1, connected[np.maximum(known, 0)])


class LocalFiles:
    """Shards in a local folder; detects changes made after its creation."""

    def __init__(self, folder: Path, shards: list[Shard]) -> None:
        self._paths = [folder / shard.name for shard in shards]
        self._states = [_state(path.stat()) if path.is_file() else None for path in self._paths]
        for path, shard, state in zip(self._paths, shards, self._states, strict=True):
            if state is None:
                raise ValueError(f"{path} is missing: {AGAIN}")
            if state[0] != shard.bytes:
                raise ValueError(f"{path} has {state[0]} bytes, but its manifest says {shard.bytes}: {AGAIN}")
        # Open in this process, least recently used first.
        self._open: OrderedDict[int, tuple[int, mmap.mmap]] = OrderedDict()

    def prefetch(self, positions: np.ndarray) -> None:
        """Does nothing: the kernel reads ahead."""

    def read(self, shard: int, offset: int, length: int) -> memoryview:
        """`length` bytes of a shard from `offset` on, memory-mapped."""
        if shard not in self._open:
            if len(self._open) == OPEN:
                os.close(self._open.popitem(last=False)[1][0])
            file = os.open(self._paths[shard], os.O_RDONLY)
            self._open[shard] = file, mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        self._open.move_to_end(shard)
        file, content = self._open[shard]
        if _state(os.fstat(file)) != self._states[shard]:
            raise ValueError(f"{self._paths[shard]} changed while it was being read: start again")
        return memoryview(content)[offset : offset + length]


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
