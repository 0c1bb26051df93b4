"""Shards in an object store or on a web server: range reads through fsspec, ahead of their use, kept in a bounded cache.

The unit of reading is a piece: the bytes of one shard that hold the samples of one chunk, some megabytes. The order of an epoch
needs a piece within one window only, so that a cache of two windows makes it one request an epoch.
"""

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import numpy as np

from cl.data.cache import Cache
from cl.data.order import CHUNK, WINDOW
from cl.shards.manifest import Shard

T = TypeVar("T")

WAITS = (0.5, 1, 2, 4, 8)  # seconds before another attempt
THREADS = 4  # that read ahead, in each process
SHARD_BITS = 40  # a shard is shorter than 2^40 bytes
VERSIONS = (
    "etag",
    "last-modified",
    "lastmodified",
    "last_modified",
    "mtime",
    "created",
)  # names that file systems use


class RemoteFolder:
    """A folder of shards at a URL; its index lies in the cache.

    Raises:
        ValueError: it cannot be read, or the package for such URLs is not installed.
    """

    def __init__(self, url: str, cache: Cache) -> None:
        self.url, self.cache = url.rstrip("/"), cache
        self.manifest = self._whole("manifest.json")
        self.kept = hashlib.sha256(self.manifest).hexdigest()  # the folder of its files in the cache

    def path(self, name: str) -> Path:
        """A file of this machine with the content of the file `name`."""
        kept = f"{self.kept}/{name}"
        if not (self.cache.folder / kept).exists():
            content = self._whole(name)
            os.close(self.cache.open(kept, len(content), lambda: content))
        return self.cache.folder / kept

    def files(self, split: str, shards: list[Shard], index: np.ndarray) -> "RemoteFiles":
        """The shards of a split."""
        return RemoteFiles(self, split, shards, index)

    def _whole(self, name: str) -> bytes:
        url = f"{self.url}/{name}"
        return persistently(url, lambda: _at(url)[0].cat_file(_at(url)[1]), WAITS)


class RemoteFiles:
    """The shards of one split; one that changes is noticed, by its size and by the version that the server names.

    Args:
        index: the rows of all samples, in their order.

    Raises:
        ValueError: the cache is too small, and when reading: a shard is not, or no longer, what the manifest says, the server
            serves no parts of files, or it cannot be reached for a while.
    """

    def __init__(self, folder: RemoteFolder, split: str, shards: list[Shard], index: np.ndarray) -> None:
        self._cache, self._kept, self._shards = folder.cache, f"{folder.kept}/{split}", shards
        self._urls = [f"{folder.url}/{shard.name}" for shard in shards]
        self._check_room(
            folder.url, sum(shard.bytes for shard in shards) * min(1.0, 2 * WINDOW * CHUNK / len(index))
        )
        shard_ends = np.cumsum([shard.images for shard in shards])
        self._firsts = np.union1d(np.arange(0, len(index), CHUNK), shard_ends[:-1])
        lasts = np.append(self._firsts[1:], len(index)) - 1
        self._shard, self._start = (
            index[name][self._firsts].astype(np.int64) for name in ("shard", "offset")
        )
        self._stop = index["offset"][lasts].astype(np.int64) + index["length"][lasts]
        self._begins = (self._shard << SHARD_BITS) + self._start
        self._versions: dict[int, str] = {}
        self._begin()

    def _check_room(self, url: str, needed: float) -> None:
        if self._cache.limit < 1.05 * needed:  # the index lies there too
            raise ValueError(
                f"a cache of {self._cache.limit} bytes is too small for {url}: a piece of it would be fetched many times; "
                f"at least {int(1.05 * needed) + 1} bytes are needed: set CL_CACHE_GB={1.05 * needed / 1e9 + 0.01:.2f} or more"
            )

    def _begin(self) -> None:
        """In a new process: locks and threads do not survive a fork."""
        self._process, self._lock, self._running = os.getpid(), threading.Lock(), 0
        self._wanted: deque[int] = deque()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_wanted")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._begin()

    def read(self, shard: int, offset: int, length: int) -> memoryview:
        """`length` bytes of a shard from `offset` on, which are those of one sample; writable."""
        piece = int(np.searchsorted(self._begins, (shard << SHARD_BITS) + offset, side="right")) - 1
        file = self._cache.open(self._file(piece), self._size(piece), lambda: self._fetch(piece, WAITS))
        try:
            content = bytearray(length)
            if os.preadv(file, [content], offset - int(self._start[piece])) != length:
                raise ValueError(
                    f"{self._cache.folder / self._file(piece)} is too short: remove it and start again"
                )
            return memoryview(content)
        finally:
            os.close(file)

    def ahead(self, positions: np.ndarray) -> None:
        """Fetch the samples at these positions of the index in the background, the first first; forget earlier wishes."""
        pieces, first = np.unique(
            np.searchsorted(self._firsts, positions, side="right") - 1, return_index=True
        )
        missing = [
            p for p in pieces[np.argsort(first)].tolist() if not (self._cache.folder / self._file(p)).exists()
        ]
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
            with suppress(ValueError, OSError):  # reading will meet them too, and tell
                self._cache.fill(
                    self._file(piece), self._size(piece), partial(self._fetch, piece, ()), wait=False
                )

    def _file(self, piece: int) -> str:
        return f"{self._kept}/{piece:06d}.piece"

    def _size(self, piece: int) -> int:
        return int(self._stop[piece] - self._start[piece])

    def _fetch(self, piece: int, waits: tuple[float, ...]) -> bytes:
        return persistently(self._urls[self._shard[piece]], lambda: self._range(piece), waits)

    def _range(self, piece: int) -> bytes:
        shard, start, size = int(self._shard[piece]), int(self._start[piece]), self._size(piece)
        url = self._urls[shard]
        files, path = _at(url)
        info = files.info(path)
        self._check(shard, info)
        try:
            with files.open(path, "rb", size=info["size"], cache_type="none") as file:
                file.seek(start)
                content = file.read(size)
        except ValueError as error:
            raise ValueError(
                f"{url} cannot be read in parts, which its server has to allow (HTTP range requests): {error}"
            ) from error
        if len(content) != size:
            raise EOFError(f"{len(content)} bytes came instead of {size}")
        return content

    def _check(self, shard: int, info: dict[str, Any]) -> None:
        url, size = self._urls[shard], self._shards[shard].bytes
        if info["size"] not in (size, None):
            raise ValueError(
                f"{url} has {info['size']} bytes, its manifest says {size}: upload data/shards again"
            )
        named = {key.lower(): value for key, value in info.items()}
        version = next((str(named[key]) for key in VERSIONS if named.get(key)), "")
        if shard not in self._versions:
            self._versions[shard] = self._cache.note(
                f"{self._kept}/{self._shards[shard].name}.version", version
            )
        if version != self._versions[shard]:
            raise ValueError(
                f"{url} was changed since it was first read (it was {self._versions[shard]} and is {version}): upload "
                f"data/shards again, remove {self._cache.folder / self._kept} and start again"
            )


def persistently(url: str, action: Callable[[], T], waits: tuple[float, ...]) -> T:
    """What `action` returns, attempted again while the network fails.

    Raises:
        ValueError: the last error, as a sentence.
    """
    for wait in (*waits, None):
        try:
            return action()
        except ValueError:
            raise
        except ImportError as error:
            raise ValueError(
                f"{url} needs a package that is not installed: {error} (pip install s3fs, or gcsfs)"
            ) from error
        except Exception as error:  # the libraries behind fsspec raise errors of all kinds
            if wait is None or _hopeless(error):
                cause = error.__cause__ or error
                raise ValueError(
                    f"{url} cannot be read: {type(cause).__name__}: {cause}; check the address, the network and your rights"
                ) from error
            time.sleep(wait)
    raise AssertionError


def _hopeless(error: Exception) -> bool:
    """Whether names or rights are wrong, rather than the network; fsspec reports most of HTTP as FileNotFoundError."""
    status = getattr(error.__cause__ or error, "status", None)
    if status is not None:
        return 400 <= status < 500 and status not in (408, 425, 429)
    return isinstance(error, PermissionError) or (
        isinstance(error, FileNotFoundError) and error.__cause__ is None
    )


def _at(url: str) -> tuple[Any, str]:
    """The file system, of this process, and the path in it."""
    return fsspec.core.url_to_fs(url)
