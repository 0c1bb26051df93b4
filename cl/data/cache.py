"""A folder of fetched files: bounded in size, shared by the processes of a machine, safe to kill.

The process that fetches a file locks `<name>.partial`, extends it to its final size, fills it and renames it.
File sizes therefore include reserved space, and their sum never exceeds the limit.
The least recently used pieces (`*.piece`) make room for new ones; other files stay.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import lock_descriptor, unlock_descriptor

DIGITS = 20  # of the byte count in the file `used`
SLACK = 64  # evicting frees another 1/64 of the limit, because scanning the folder takes time
POLL = 0.002  # seconds between tries to lock a file
PATIENCE = 60  # seconds to wait for room that others have reserved and not yet filled


@dataclass(frozen=True)
class Cache:
    """At most `limit` bytes in `folder`, which contains no other files."""

    folder: Path
    limit: int

    def open(self, name: str, size: int, fetch: Callable[[], bytes]) -> int:
        """An open descriptor of the file `name`; `fetch` provides the `size` bytes of a missing file.

        Raises:
            ValueError: the limit leaves no room.
            OSError: for example, the disk is full; no incomplete file is left.
        """
        while True:
            with suppress(FileNotFoundError):
                file = os.open(self.folder / name, os.O_RDONLY)
                os.utime(file)
                return file
            self.fill(name, size, fetch)

    def fill(self, name: str, size: int, fetch: Callable[[], bytes], *, wait: bool = True) -> None:
        """Fetch a missing file; if another thread or process is fetching it, `wait` or return."""
        path = self.folder / name
        partial = path.with_name(f"{path.name}.partial")
        with _locked(partial, wait=wait) as file:
            # The previous holder of the lock may have finished, given up or been killed.
            if file is not None and not path.exists():
                self._extend(file, size, PATIENCE if wait else 0)
                content = fetch()
                assert len(content) == size
                with open(file, "wb", closefd=False) as out:
                    out.write(content)
                os.fsync(file)
                with self._exclusive():
                    os.replace(partial, path)

    def setdefault(self, name: str, text: str) -> str:
        """The text stored under a name; store `text` first if the name is new."""
        with open(self.open(name, len(text.encode()), text.encode), encoding="utf-8", newline="") as file:
            return file.read()

    def _extend(self, file: int, size: int, patience: float) -> None:
        """Extend an empty file to `size` bytes once there is room."""
        began = time.monotonic()
        while True:
            with self._exclusive() as used:
                if self._reserve(used, size):
                    os.ftruncate(file, size)
                    return
            if time.monotonic() - began >= patience:
                raise ValueError(
                    f"{self.folder} is limited to {self.limit} bytes and full of files in use: "
                    "increase CL_CACHE_GB, or set CL_CACHE to a separate folder"
                )
            time.sleep(0.05)

    @contextmanager
    def _exclusive(self) -> Iterator[int]:
        """Keep other threads and processes from adding files; yields the file with the byte count."""
        self.folder.mkdir(parents=True, exist_ok=True)
        used = os.open(self.folder / "used", os.O_RDWR | os.O_CREAT, 0o666)
        lock_descriptor(used, poll_interval=POLL)
        try:
            if os.fstat(used).st_size != DIGITS:
                _write_number(used, self.limit)  # unknown: assume a full folder, which forces a scan
            yield used
        finally:
            unlock_descriptor(used)
            os.close(used)

    def _reserve(self, used: int, size: int) -> bool:
        """Add `size` to the byte count if it fits. After a kill, the count may be too high, never too low."""
        total = int(os.pread(used, DIGITS, 0))
        if total + size > self.limit:  # leftovers of killed processes go, then least recently used pieces
            total, pieces = self._scan()
            for _, freed, path in sorted(pieces):
                if total <= self.limit - self.limit // SLACK - size:
                    break
                path.unlink()
                total -= freed
        fits = total + size <= self.limit
        _write_number(used, total + size if fits else total)
        return fits

    def _scan(self) -> tuple[int, list[tuple[int, int, Path]]]:
        """Bytes in the folder; last use, size and path of each piece. Removes killed processes' leftovers."""
        total, pieces = 0, []
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                if path.suffix == ".partial":
                    with _locked(path, wait=False) as file:  # removes a file that no process is fetching
                        if file is not None:
                            continue
                with suppress(FileNotFoundError):  # removed after a failed fetch
                    status = path.stat()
                    total += status.st_size
                    if path.suffix == ".piece":
                        pieces.append((status.st_mtime_ns, status.st_size, path))
        return total, pieces


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[int | None]:
    """Create and lock a file; remove it at the end unless it was renamed.

    Yields a descriptor, or None if another process holds the lock, or has renamed or removed the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if not lock_descriptor(file, blocking=wait, poll_interval=POLL):
        os.close(file)
        yield None
        return
    try:
        yield file if _has_path(file, path) else None
    finally:
        if _has_path(file, path):
            path.unlink()
        unlock_descriptor(file)  # before closing: a process forked meanwhile shares the lock
        os.close(file)


def _has_path(file: int, path: Path) -> bool:
    """Whether an open file still has this path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file))
    return False


def _write_number(file: int, number: int) -> None:
    os.pwrite(file, f"{number:0{DIGITS}d}".encode(), 0)
