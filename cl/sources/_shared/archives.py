"""Archives as their publishers distribute them: download, check, unpack and read; damage is a ValueError."""

import hashlib
import http.client
import os
import shutil
import socket
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, TypeAlias

from filelock import FileLock

from cl.console.progress import Progress
from cl.runtime.stores import is_url

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10, STL10

TIMEOUT = 60.0  # seconds without an answer from the server
BLOCK = 2**24  # bytes per read of an archive at a URL
Archive: TypeAlias = "type[CIFAR10] | type[STL10]"


def ensure_unpacked(archive: Archive, raw: Path) -> Path:
    """Return the folder of one of torchvision's archives below `raw`, after checking the md5 of every file.

    A missing folder is unpacked from the archive in `raw`; a missing archive is downloaded. The folder gets
    its name once it is complete; the next call removes the leftovers of a killed one.

    Raises:
        ValueError: the download fails, or the archive or one of its files is not the official one.
    """
    if is_url(raw):
        raise ValueError(
            f"CL_RAW={raw}: {archive.filename} is read from this machine; set CL_RAW to a folder"
        )
    folder = raw / archive.base_folder
    if not folder.exists():
        raw.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):  # one process unpacks while others wait
            if not folder.exists():
                _unpack(archive, folder)
    remedy = (
        f"remove {folder}, and the next run will create it again from {archive.filename} "
        f"(md5 {archive.tgz_md5})"
    )
    files = [*archive.train_list, *archive.test_list]
    if meta := getattr(archive, "meta", None):
        files.append([meta["filename"], meta["md5"]])
    for name, md5 in files:
        _check(folder / name, md5, remedy)
    return folder


def _unpack(archive: Archive, folder: Path) -> None:
    """Create the folder of an archive, from a file next to it or from a download."""
    raw = folder.parent
    remedy = (
        f"put {archive.filename} (md5 {archive.tgz_md5}) into {raw}, "
        "or set CL_RAW to the folder that holds the raw data sets"
    )
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        file = raw / archive.filename
        if not file.exists():
            file = _download(archive, partial, f"no folder {folder}, and no file {file}; {remedy}")
        _check(file, archive.tgz_md5, remedy)
        try:
            _extract(file, partial, archive.base_folder)
            os.replace(partial / archive.base_folder, folder)
        except (tarfile.TarError, FileNotFoundError) as error:
            raise ValueError(
                f"{file} should contain only the folder {archive.base_folder} ({error}); {remedy}"
            ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(archive: Archive, folder: Path, remedy: str) -> Path:
    from torchvision.datasets.utils import download_url  # late: torchvision takes seconds to import

    Progress("prepare").say(f"downloading {archive.url}")
    timeout_before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torchvision sets no timeout and would wait forever
    try:
        download_url(archive.url, folder, archive.filename)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise ValueError(
            f"{remedy}; the download of {archive.url} failed: {type(error).__name__}: {error}"
        ) from error
    finally:
        socket.setdefaulttimeout(timeout_before)
    return folder / archive.filename


def _check(path: Path, md5: str, remedy: str) -> None:
    if not path.is_file():
        raise ValueError(f"no file {path}; {remedy}")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "md5").hexdigest()
    if actual != md5:
        raise ValueError(f"{path} has md5 {actual}, expected {md5}; {remedy}")


def _extract(file: Path, target: Path, base: str) -> None:
    """Write the plain files below `base` into `target`; refuse everything else.

    Python 3.11.2 lacks tarfile's own filters.
    """
    with tarfile.open(file) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            inside = not path.is_absolute() and ".." not in path.parts and path.parts[:1] == (base,)
            if not inside or not (member.isreg() or member.isdir()):
                raise tarfile.TarError(f"unexpected member {member.name!r}")
            content = tar.extractfile(member)
            if content is None:
                continue
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            with content, (target / path).open("wb") as out:
                shutil.copyfileobj(content, out)


def members(path: Path, part: IO[bytes] | None = None) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield an uncompressed tar with each of its members.

    A missing end mark is an error, because members may be missing too.

    Args:
        part: the tar's bytes, if it is a part of the file `path`.

    Raises:
        ValueError: the archive is damaged or truncated.
    """
    try:
        with ExitStack() as stack:
            if part is None and is_url(path):
                remote = path.open("rb", cache_type="readahead", block_size=BLOCK)  # type: ignore[call-overload]
                part = stack.enter_context(remote)
            tar = stack.enter_context(tarfile.open(str(path), "r:", fileobj=part))
            for member in tar:
                if member.size < 0:  # Python 3.11 would read the member forever
                    raise tarfile.ReadError(f"{member.name!r} has {member.size} bytes")
                yield tar, member
            assert tar.fileobj is not None
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"no end mark at byte {tar.offset}")
    except PermissionError:
        raise
    except Exception as error:  # on damaged bytes, tarfile raises errors of any type
        raise ValueError(
            f"{path} is damaged or incomplete ({type(error).__name__}: {error}); download it again"
        ) from error
