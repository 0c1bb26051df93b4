"""Locks that keep other processes from the same files."""

import errno
import os

import pytest

from cl.runtime import files


def lock_on_lustre(descriptor: int, operation: int) -> None:
    """What `fcntl.flock` does where Lustre is mounted without locks."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def failing_lock(descriptor: int, operation: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_file_system_without_locks_locks_nothing(tmp_path) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_WRONLY | os.O_CREAT)
    with files.locked(descriptor, lock_on_lustre, tmp_path):
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(descriptor)


def test_other_failures_are_errors(tmp_path) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="Input/output"), files.locked(descriptor, failing_lock, tmp_path):
        pass
