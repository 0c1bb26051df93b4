"""Locks that keep other processes from the same files."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cl.runtime import files

FORK_AND_DIE = """
import os, sys
from pathlib import Path
from cl.runtime.files import exclusive
with exclusive(Path(sys.argv[1]), Path(sys.argv[1])):
    if os.fork():
        os._exit(0)
    sys.stdin.read()
"""


def is_free(folder: Path) -> bool:
    try:
        with files.exclusive(folder, folder):
            return True
    except ValueError:
        return False


def failing(number: int):
    def lock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    return lock


@pytest.mark.parametrize("lock", [lambda x: files.exclusive(x, x), files.exclusive_with_children])
def test_a_locked_folder_is_refused(lock, tmp_path) -> None:
    refused = pytest.raises(ValueError, match="another process is writing into")
    with lock(tmp_path), refused, lock(tmp_path):
        pass
    with lock(tmp_path):
        pass


def test_finished_work_is_removed_without_freeing_the_lock(tmp_path) -> None:
    """A second process that came just then could otherwise begin in a folder that is being removed."""
    folder = tmp_path / "x.partial"
    with files.exclusive(folder, folder):
        (folder / "parts").mkdir()
        (folder / "identity").touch()
        files.clear(folder)
        assert [path.name for path in folder.iterdir()] == [files.LOCK]
        assert not is_free(folder)
    assert not folder.exists()
    with files.exclusive(folder, folder):
        (folder / "identity").touch()
    assert (folder / "identity").exists(), "unfinished work is kept"


@pytest.mark.parametrize("lock", [lambda x: files.exclusive(x, x), files.exclusive_with_children])
def test_a_file_system_without_locks_locks_nothing(lock, tmp_path, monkeypatch) -> None:
    """As Lustre mounted without locks; other failures are errors."""
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOSYS))
    with lock(tmp_path), lock(tmp_path):
        pass
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output"), lock(tmp_path):
        pass


def test_a_process_that_dies_frees_its_lock_even_if_its_children_live(tmp_path) -> None:
    program = subprocess.Popen([sys.executable, "-c", FORK_AND_DIE, tmp_path], stdin=subprocess.PIPE)
    program.wait()
    # The child closes its copy of the descriptor once it runs.
    free = any(is_free(tmp_path) or time.sleep(0.1) for _ in range(100))
    program.communicate()
    assert free
