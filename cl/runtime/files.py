"""Files written whole or not at all, locks against several writers, and why a file cannot be used."""

import errno
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

LOCK = "lock"  # the name of a file
# A name or link does not lead to a readable file; other errors, such as EIO, are failures of the disk.
NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
UNREACHABLE = NO_FILE | {errno.EACCES, errno.EPERM}
WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}  # from file systems without locks


@contextmanager
def locked(descriptor: int, lock: Callable[[int, int], None], target: Path) -> Iterator[None]:
    """Hold a lock that keeps other processes from writing into `target`; closes the descriptor at the end.

    On a file system without locks, such as Lustre mounted without `flock`, nothing is locked.

    Args:
        lock: `fcntl.flock`, whose lock forked processes inherit, or `fcntl.lockf`, whose lock they do not.

    Raises:
        ValueError: another process is writing into it.
    """
    try:
        try:
            lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise ValueError(
                f"another process is writing into {target}; wait until it has finished, or stop it"
            ) from error
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def exclusive(folder: Path, target: Path) -> AbstractContextManager[None]:
    """Keep other processes from writing into `target`, by a lock in `folder` that children do not inherit.

    Raises:
        ValueError: another process is writing into it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return locked(os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT), fcntl.lockf, target)


def reason(error: BaseException) -> str:
    """Why a file cannot be used, without its path, so that results do not depend on where the file is."""
    return f"{type(error).__name__}: {(isinstance(error, OSError) and error.strerror) or error}"


@contextmanager
def finished(path: Path) -> Iterator[Path]:
    """A path that no other writer has; on success, the file is renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
