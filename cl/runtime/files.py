"""Files written whole or not at all, locks against several writers, and why a file cannot be used."""

import errno
import os
import shutil
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

LONGEST_REASON = 300  # characters; some libraries quote the damaged bytes
PARTIAL = ".partial"  # suffix of what is being written
LOCK = "lock"  # the name of a file
# A name or link does not lead to a readable file; other errors, such as EIO, are failures of the disk.
UNREACHABLE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
UNREACHABLE |= {errno.EACCES, errno.EPERM}
WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}  # from file systems without locks


@contextmanager
def exclusive(folder: Path, target: Path) -> Iterator[None]:
    """Keep other processes from writing into `target`, by a lock in `folder` that children do not inherit.

    On a file system without locks, such as Lustre mounted without `flock`, nothing is locked. At the end, a
    folder without other files is removed. ValueError if another process is writing.
    """
    lock = FileLock(folder / LOCK, blocking=False, fallback_to_soft=False)
    with _refused(target):
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        if [path.name for path in folder.glob("*")] == [LOCK]:
            (folder / LOCK).unlink()  # while it is locked: a process that waits for this file is refused
        lock.release()
        with suppress(OSError):
            folder.rmdir()


def clear(folder: Path) -> None:
    """Remove the files in a folder of `exclusive`, except its lock: another process could then use it too."""
    for path in list(folder.glob("*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink(missing_ok=True)


@contextmanager
def exclusive_with_children(folder: Path) -> Iterator[None]:
    """As `exclusive`, on the folder itself, until all processes forked in the block have ended too."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with _refused(folder):
            if not lock_descriptor(descriptor, blocking=False):
                raise Timeout(str(folder))
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _refused(target: Path) -> Iterator[None]:
    """Refuse a target that another process has locked; pass where the file system has no locks."""
    try:
        yield
    except (Timeout, FileNotFoundError, FileExistsError) as error:  # it may just be removing the folder
        raise ValueError(f"another process is writing into {target}; wait for it, or stop it") from error
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise


def reason(error: BaseException) -> str:
    """Why a file cannot be used, without its path, so that results do not depend on where the file is."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return textwrap.shorten(f"{type(error).__name__}: {text}", LONGEST_REASON, placeholder=" ...")


@contextmanager
def finished(path: Path) -> Iterator[Path]:
    """A path that no other writer has; on success, the file is renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
