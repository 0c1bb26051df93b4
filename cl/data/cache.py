"""A folder of files that come from elsewhere: bounded in size, shared by the processes of a machine, safe to kill.

A file is fetched into `<name>.partial`, locked by the process that fetches it and as long as the file will be, and renamed when
it is whole. So what lies in the folder is what is used or promised, and the sum of its files never exceeds the limit.
Pieces (`*.piece`) that were not used for the longest time make room for new ones; other files stay.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

DIGITS = 20  # of the number of bytes in the file `used`
SLACK = 64  # a 64th of the limit is freed at once, as looking through the folder takes time
PATIENCE = 60  # seconds to wait for room that others have promised to files and not yet filled


@dataclass(frozen=True)
class Cache:
    """At most `limit` bytes in `folder`, which holds nothing else."""

    folder: Path
    limit: int

    def open(self, name: str, size: int, fetch: Callable[[], bytes]) -> int:
        """A descriptor, which the caller closes, of the file `name`; `fetch` gives its `size` bytes where it is not there.

        Raises:
            ValueError: the limit leaves no room.
            OSError: the disk is full, or the like; no half file is left.
        """
        while True:
            with suppress(FileNotFoundError):
                file = os.open(self.folder / name, os.O_RDONLY)
                os.utime(file)
                return file
            self.fill(name, size, fetch)

    def fill(self, name: str, size: int, fetch: Callable[[], bytes], *, wait: bool = True) -> None:
        """Fetch a file unless it is there, or another thread or process is at it (then `wait` for it, or leave it)."""
        path = self.folder / name
        partial = path.with_name(f"{path.name}.partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(file)
            return
        try:
            # Whoever held the lock before may have finished, given up, or been killed.
            if _is(partial, file) and not path.exists():
                self._add(size, lambda: os.ftruncate(file, size), PATIENCE if wait else 0)
                content = fetch()
                assert len(content) == size
                with open(file, "wb", closefd=False) as out:
                    out.write(content)
                os.fsync(file)
                with self._exclusive():
                    os.replace(partial, path)
        finally:
            if _is(partial, file):
                partial.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)  # before closing: a process forked meanwhile shares the lock
            os.close(file)

    def note(self, name: str, text: str) -> str:
        """The text that was first noted under a name, which is this one if it is the first."""
        path = self.folder / name
        partial = path.with_name(f"{path.name}.partial")

        def write() -> None:
            if not path.exists():
                partial.write_text(text)
                os.replace(partial, path)

        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._add(len(text.encode()), write, PATIENCE)
        return path.read_text()

    def _add(self, size: int, action: Callable[[], object], patience: float) -> None:
        """Do what adds `size` bytes to the folder, as soon as there is room."""
        began = time.monotonic()
        while True:
            with self._exclusive() as used:
                if self._make_room(used, size):
                    action()
                    return
            if time.monotonic() - began >= patience:
                raise ValueError(
                    f"{self.folder} may hold {self.limit} bytes and is full of what is needed now: set CL_CACHE_GB higher, "
                    "or CL_CACHE to a folder of its own"
                )
            time.sleep(0.05)

    @contextmanager
    def _exclusive(self) -> Iterator[int]:
        """No other thread or process adds a file meanwhile; gives the file with the number of bytes in the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        used = os.open(self.folder / "used", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(used, fcntl.LOCK_EX)
        try:
            if os.fstat(used).st_size != DIGITS:
                _write_number(used, self.limit)  # unknown: look
            yield used
        finally:
            fcntl.flock(used, fcntl.LOCK_UN)
            os.close(used)

    def _make_room(self, used: int, size: int) -> bool:
        """Count `size` more bytes if they fit. The count may be above the truth, as for a killed process, never below it."""
        total = int(os.pread(used, DIGITS, 0))
        if total + size > self.limit:
            total = self._evict(self.limit - self.limit // SLACK - size)
        fits = total + size <= self.limit
        _write_number(used, total + size if fits else total)
        return fits

    def _evict(self, target: int) -> int:
        """Remove what killed processes left, and the pieces that were not used for longest, down to `target` bytes."""
        total, pieces = 0, []
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                if path.suffix == ".partial" and _abandoned(path):
                    continue
                with suppress(FileNotFoundError):  # a fetch that failed
                    status = path.stat()
                    total += status.st_size
                    if path.suffix == ".piece":
                        pieces.append((status.st_mtime_ns, status.st_size, path))
        for _, size, path in sorted(pieces):
            if total <= target:
                break
            path.unlink()
            total -= size
        return total


def _is(path: Path, file: int) -> bool:
    """Whether an open file still has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file))
    return False


def _abandoned(partial: Path) -> bool:
    """Remove a file that nobody is fetching any more; False if somebody is."""
    with suppress(FileNotFoundError, BlockingIOError):
        file = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(partial, file):
                partial.unlink()
            return True
        finally:
            os.close(file)
    return False


def _write_number(file: int, number: int) -> None:
    os.pwrite(file, f"{number:0{DIGITS}d}".encode(), 0)
