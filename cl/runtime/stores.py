"""Files in an object store or on a web server (fsspec).

Operations are retried if the network fails, and raise ValueError if the store cannot be reached.
"""

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from fsspec.core import url_to_fs

from cl.runtime.files import finished

T = TypeVar("T")

WAITS = (0.5, 1, 2, 4, 8)  # seconds before another attempt
# Names under which file systems give the version of a file.
VERSIONS = ("etag", "last-modified", "lastmodified", "last_modified", "mtime", "created")


def is_url(place: object) -> bool:
    """Whether a place is a URL rather than a path."""
    return "://" in str(place)


def path_of(place: str) -> Path:
    """A path, or a URL that can be used like one."""
    if not is_url(place):
        return Path(place)
    from upath import UPath

    return persistently(place, lambda: UPath(place), ())  # type: ignore[return-value]


def read(url: str, start: int | None = None, stop: int | None = None) -> bytes:
    """The content of a file, or its bytes from `start` to `stop` - 1; FileNotFoundError without the file."""

    def fetch() -> bytes | None:
        files, path = url_to_fs(url)
        try:
            return files.cat_file(path, start=start, end=stop)
        except FileNotFoundError as error:
            if _hopeless(error):
                return None
            raise

    if (content := persistently(url, fetch, WAITS)) is None:
        raise FileNotFoundError(errno.ENOENT, "not in the store", url)
    return content


def files_below(url: str) -> Iterator[tuple[str, str]]:
    """For each file below `url`, its relative path, and its size and version; lists one folder at a time."""
    files, root = persistently(url, lambda: url_to_fs(url), ())
    waiting = [root]
    while waiting:
        folder = waiting.pop()

        def entries(folder: str = folder) -> list[dict[str, Any]]:
            files.invalidate_cache(folder)
            return files.ls(folder, detail=True)

        for entry in persistently(url, entries, WAITS):
            name = entry["name"]
            if entry["type"] == "directory":
                waiting.append(name)
            elif name.rstrip("/") != folder.rstrip("/"):  # some stores list a folder as an empty object
                yield name.removeprefix(root).lstrip("/"), f"{entry['size']} {version(entry)}"
        files.invalidate_cache(folder)


def version(info: dict[str, Any]) -> str:
    """The version of a file from its file system's information; empty if there is none."""
    details = {key.lower(): value for key, value in info.items()}
    return next((str(details[key]) for key in VERSIONS if details.get(key)), "")


def upload(file: Path, place: str) -> None:
    """Copy a file to a path or URL, where it appears once it is complete.

    At a URL, a file of equal size is not replaced, so names must change with the content.
    """
    if not is_url(place):
        with finished(Path(place)) as partial:
            shutil.copyfile(file, partial)
        return

    def put() -> None:
        files, path = url_to_fs(place)
        if not files.exists(path) or files.size(path) != file.stat().st_size:
            files.put_file(str(file), path)

    persistently(place, put, WAITS, "written")


def sizes(place: str) -> dict[str, int] | None:
    """The bytes of each file in a folder or directly below a URL, by name; None for web servers."""
    if place.startswith(("http://", "https://")):
        return None

    def find() -> dict[str, int]:
        files, path = url_to_fs(place)
        files.invalidate_cache(path)
        infos = files.find(path, maxdepth=1, detail=True)
        return {name.rsplit("/", 1)[-1]: info["size"] for name, info in infos.items()}

    return persistently(place, find, WAITS)


def persistently(url: str, action: Callable[[], T], waits: tuple[float, ...], done: str = "read") -> T:
    """The result of `action`, retried if the network fails; else, ValueError says what cannot be `done`."""
    for wait in (*waits, None):
        try:
            return action()
        except ValueError:
            raise
        except ImportError as error:
            raise ValueError(f"{url} needs a missing package: {error} (pip install s3fs or gcsfs)") from error
        except Exception as error:  # the libraries behind fsspec raise errors of any type
            if wait is None or _hopeless(error):
                cause = error.__cause__ or error
                raise ValueError(
                    f"{url} cannot be {done}: {type(cause).__name__}: {cause}; "
                    "check the address, the network and your permissions"
                ) from error
            time.sleep(wait)
    raise AssertionError


def _hopeless(error: Exception) -> bool:
    """Whether the address or the permissions are wrong, rather than the network."""
    # fsspec reports most HTTP errors as FileNotFoundError: the cause has the status.
    status = getattr(error.__cause__ or error, "status", None)
    if status is not None:
        return 400 <= status < 500 and status not in (408, 425, 429)
    return isinstance(error, PermissionError) or (
        isinstance(error, FileNotFoundError) and error.__cause__ is None
    )
