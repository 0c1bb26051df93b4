"""Archives as their publishers distribute them: downloaded, checked, unpacked, read; damage ends in a sentence."""

import fcntl
import http.client
import os
import shutil
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from torchvision.datasets import CIFAR10, STL10
from torchvision.datasets.utils import calculate_md5, download_url

from cl.console.progress import Progress

PATIENCE = 60.0  # seconds that a server may be silent
Archive = type[CIFAR10] | type[STL10]


def unpacked(archive: Archive, raw: Path) -> Path:
    """The folder of one of torchvision's archives below `raw`, every file of which has the official md5.

    If it is not there it is unpacked from the archive in `raw`, which is downloaded if that is not there either. The
    folder appears under its name when all of it is there; what a killed call has left the next one removes.

    Raises:
        ValueError: the download fails, or the archive or one of its files is not the official one.
    """
    folder = raw / archive.base_folder
    if not folder.exists():
        with _exclusive(folder):
            if not folder.exists():
                _unpack(archive, folder)
    meta = getattr(archive, "meta", None)
    for name, md5 in [
        *archive.train_list,
        *archive.test_list,
        *([(meta["filename"], meta["md5"])] if meta else []),
    ]:
        _check(
            folder / name,
            md5,
            f"remove {folder}: the next run makes it anew from {archive.filename} (md5 {archive.tgz_md5})",
        )
    return folder


def _wanted(archive: Archive, raw: Path) -> str:
    return f"{archive.filename} (md5 {archive.tgz_md5}) into {raw}, or set CL_RAW to the folder that holds the raw data sets"


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One process at a time makes a folder; the others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(archive: Archive, folder: Path) -> None:
    raw, partial = folder.parent, folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        file, remedy = raw / archive.filename, f"put {_wanted(archive, raw)}"
        if not file.exists():
            file = _downloaded(archive, partial, f"no folder {folder}, and no file {file}; {remedy}")
        _check(file, archive.tgz_md5, remedy)
        try:
            with tarfile.open(file) as tar:
                for member in tar:
                    _extract(tar, member, partial, archive.base_folder)
            os.replace(partial / archive.base_folder, folder)
        except (tarfile.TarError, FileNotFoundError) as error:
            raise ValueError(
                f"{file} holds no plain folder {archive.base_folder} ({error}); {remedy}"
            ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, base: str) -> None:
    """Write a file below `target/base`; nothing else is accepted. The filters of tarfile are not in Python 3.11.2."""
    path = PurePosixPath(member.name)
    if (
        path.is_absolute()
        or ".." in path.parts
        or path.parts[:1] != (base,)
        or not (member.isreg() or member.isdir())
    ):
        raise tarfile.TarError(f"{member.name!r} is no file of it")
    content = tar.extractfile(member)
    if content is not None:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with content, (target / path).open("wb") as out:
            shutil.copyfileobj(content, out)


def _downloaded(archive: Archive, folder: Path, remedy: str) -> Path:
    Progress("prepare").say(f"downloading {archive.url}")
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)  # torchvision sets none and would wait for ever
    try:
        download_url(archive.url, folder, archive.filename)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise ValueError(
            f"{remedy}; the download of {archive.url} failed: {type(error).__name__}: {error}"
        ) from error
    finally:
        socket.setdefaulttimeout(patience)
    return folder / archive.filename


def _check(path: Path, md5: str, remedy: str) -> None:
    if not path.is_file():
        raise ValueError(f"no file {path}; {remedy}")
    if (found := calculate_md5(path)) != md5:
        raise ValueError(f"{path} has md5 {found}, expected {md5}; {remedy}")


def members(path: Path, part: IO[bytes] | None = None) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """An uncompressed tar archive with each of its members, up to its end mark, without which some could be missing.

    Args:
        part: the archive itself, where it is a part of `path` or was compressed there.

    Raises:
        ValueError: the archive is damaged or cut off.
    """
    try:
        with tarfile.open(path, "r:", fileobj=part) as tar:
            for member in tar:
                if member.size < 0:  # Python 3.11 would read it again and again
                    raise tarfile.ReadError(f"{member.name!r} has {member.size} bytes")
                yield tar, member
            assert tar.fileobj is not None
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"no end mark at byte {tar.offset}")
    except PermissionError:
        raise
    except (
        Exception
    ) as error:  # what tarfile raises for damaged bytes is not documented, and is not only its own errors
        raise ValueError(
            f"{path} is no complete archive ({type(error).__name__}: {error}): get it again"
        ) from error
