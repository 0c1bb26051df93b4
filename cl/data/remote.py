"""Shards in an object store or on a web server, read ahead by range requests into a bounded cache (fsspec).

The unit of reading is a piece: the samples of one chunk within one shard, a few megabytes. An epoch needs
each piece within one window only, so a cache of two windows requests each piece once per epoch.
"""

import os
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from fsspec.core import url_to_fs

from cl.data.cache import Cache
from cl.data.order import CHUNK, WINDOW
from cl.runtime import stores
from cl.shards.manifest import Shard

THREADS = 4  # per process, to read ahead
SHARD_BITS = 40  # a shard is smaller than 2^40 bytes
ROOM = 1.05  # times two windows: the cache evicts slightly more than it must
AGAIN = "run `dvc repro -f prepare`"


class RemoteFiles:
    """The shards of one split; changes are detected by size and by the version that the server reports.

    Args:
        store: the URL of the folder of shards.
        cached_in: the folder in the cache for this split.
        index: the rows of all samples, in order.

    Raises:
        ValueError: the cache is too small, or a shard is missing. Reading raises it if a shard does not match
            the manifest or has changed, or the server is unreachable or does not support range requests.
    """

    def __init__(
        self, store: str, cache: Cache, cached_in: str, shards: list[Shard], index: np.ndarray
    ) -> None:
        self._cache, self._cached_in, self._shards = cache, cached_in, shards
        self._urls = [f"{store.rstrip('/')}/{shard.name}" for shard in shards]
        total = sum(shard.bytes for shard in shards)
        needed = ROOM * total * min(1.0, 2 * WINDOW * CHUNK / len(index))
        if cache.limit < needed:  # too small to fetch each piece once per epoch
            raise ValueError(
                f"{store} needs a cache of at least {int(needed) + 1} bytes, found {cache.limit}: "
                f"set CL_CACHE_GB={needed / 1e9 + 0.01:.2f} or more"
            )
        sizes = stores.sizes(store)
        if sizes is not None:
            for number, shard in enumerate(shards):
                self._check_size(number, sizes.get(shard.name))
        shard_ends = np.cumsum([shard.images for shard in shards])
        self._firsts = np.union1d(np.arange(0, len(index), CHUNK), shard_ends[:-1])
        lasts = np.append(self._firsts[1:], len(index)) - 1
        self._shard = index["shard"][self._firsts].astype(np.int64)
        self._start = index["offset"][self._firsts].astype(np.int64)
        self._stop = index["offset"][lasts].astype(np.int64) + index["length"][lasts]
        self._begins = (self._shard << SHARD_BITS) + self._start
        self._versions: dict[int, str] = {}
        self._begin()

    def _begin(self) -> None:
        """Create the lock and the queue, which do not survive a fork."""
        self._process, self._lock, self._running = os.getpid(), threading.Lock(), 0
        self._wanted: deque[int] = deque()

    def read(self, shard: int, offset: int, length: int) -> memoryview:
        """The `length` bytes of a sample, from `offset` of its shard; writable."""
        piece = int(np.searchsorted(self._begins, (shard << SHARD_BITS) + offset, side="right")) - 1
        fetch = partial(self._fetch, piece, stores.WAITS)
        file = self._cache.open(self._file(piece), self._size(piece), fetch)
        try:
            content = bytearray(length)
            if os.preadv(file, [content], offset - int(self._start[piece])) != length:
                path = self._cache.folder / self._file(piece)
                raise ValueError(f"{path} is too short: remove it and start again")
            return memoryview(content)
        finally:
            os.close(file)

    def prefetch(self, positions: np.ndarray) -> None:
        """Fetch samples in the background, in the order of their positions; cancels an earlier call."""
        piece_of = np.searchsorted(self._firsts, positions, side="right") - 1
        pieces, first_use = np.unique(piece_of, return_index=True)
        ordered = pieces[np.argsort(first_use)].tolist()
        missing = [piece for piece in ordered if not (self._cache.folder / self._file(piece)).exists()]
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            self._wanted = deque(missing)
            more = min(THREADS - self._running, len(missing))
            self._running += more
        for _ in range(more):
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._running -= 1
                    return
                piece = self._wanted.popleft()
            fetch = partial(self._fetch, piece, ())
            with suppress(ValueError, OSError):  # `read` will raise the same error
                self._cache.fill(self._file(piece), self._size(piece), fetch, wait=False)

    def _file(self, piece: int) -> str:
        return f"{self._cached_in}/{piece:06d}.piece"

    def _size(self, piece: int) -> int:
        return int(self._stop[piece] - self._start[piece])

    def _fetch(self, piece: int, waits: tuple[float, ...]) -> bytes:
        return stores.persistently(self._urls[self._shard[piece]], lambda: self._range(piece), waits)

    def _range(self, piece: int) -> bytes:
        shard, size = int(self._shard[piece]), self._size(piece)
        url = self._urls[shard]
        files, path = url_to_fs(url)
        info = files.info(path)
        self._check(shard, info)
        try:
            with files.open(path, "rb", size=info["size"], cache_type="none") as file:
                file.seek(int(self._start[piece]))
                content = file.read(size)
        except ValueError as error:
            raise ValueError(
                f"{url} cannot be read in parts; its server must support HTTP range requests: {error}"
            ) from error
        if len(content) != size:
            raise EOFError(f"received {len(content)} bytes instead of {size}")
        return content

    def _check(self, shard: int, info: dict[str, Any]) -> None:
        """Compare the size with the manifest, and the version with the first that any process saw."""
        if info["size"] is not None:  # some web servers do not report it
            self._check_size(shard, info["size"])
        url, version = self._urls[shard], stores.version(info)
        if shard not in self._versions:
            name = f"{self._cached_in}/{self._shards[shard].name}.version"
            self._versions[shard] = self._cache.setdefault(name, version)
        if version != self._versions[shard]:
            raise ValueError(
                f"{url} changed since it was first read (version {self._versions[shard]}, now {version}): "
                f"{AGAIN}, remove {self._cache.folder / self._cached_in} and start again"
            )

    def _check_size(self, shard: int, size: int | None) -> None:
        url, expected = self._urls[shard], self._shards[shard].bytes
        if size is None:
            raise ValueError(f"{url} is missing: {AGAIN}")
        if size != expected:
            raise ValueError(f"{url} has {size} bytes, but its manifest says {expected}: {AGAIN}")
