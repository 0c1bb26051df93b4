"""One WebDataset shard from a list of images, without anything in it that changes from run to run."""

import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import webdataset

from cl.shards import images
from cl.shards.manifest import INDEX, Shard
from cl.sources import Image, Storage


@dataclass(frozen=True)
class Packed:
    """A shard and what is to be known of its n images.

    rows: (n,) INDEX, whose shard number is not known yet. keys: (n,) bytes. skipped: by key, why an image was left out.
    """

    shard: Shard
    rows: np.ndarray
    keys: np.ndarray
    reencoded: int
    turned: int
    skipped: dict[str, str]


def pack(listed: list[Image], storage: Storage, target: Path) -> Packed:
    """Write the images that can be read to `target`, which appears when it is whole.

    Raises:
        OSError: the disk is full, or the like; nothing is left.
    """
    partial = target.with_name(f"{target.name}.partial")
    skipped: dict[str, str] = {}
    kept: list[tuple[Image, images.Stored]] = []
    try:
        with partial.open("wb") as file:
            writer = webdataset.TarWriter(_Sink(file), user="cl", group="cl", mode=0o644, mtime=0)
            for image, stored in _stored(listed, storage, skipped):
                writer.write(
                    {"__key__": image.key, stored.extension: stored.content, "cls": str(image.label)}
                )
                kept.append((image, stored._replace(content=b"")))
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        rows = _index(partial, kept)
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        shard = Shard(name=target.name, images=len(kept), bytes=partial.stat().st_size, sha256=digest)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    keys = np.array([image.key.encode() for image, _ in kept], dtype=bytes)
    reencoded, turned = sum(stored.reencoded for _, stored in kept), sum(stored.turned for _, stored in kept)
    return Packed(shard, rows, keys, reencoded, turned, skipped)


class _Sink:
    """A file that takes nothing more once writing has failed, as when tarfile's destructor would try it again."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.failed = file, False

    def write(self, content: bytes) -> int:
        if self.failed:
            return len(content)
        self.failed = True
        written = self.file.write(content)
        self.failed = False
        return written


def _stored(
    listed: list[Image], storage: Storage, skipped: dict[str, str]
) -> Iterator[tuple[Image, images.Stored]]:
    """Each image that can be read; the others go into `skipped`."""
    for image in listed:
        try:
            content = image.read()  # a disk that fails is no image that is damaged
        except FileNotFoundError as error:
            skipped[image.key] = _reason(error)
            continue
        try:
            stored = images.store(content, storage)
        except MemoryError:
            raise
        except Exception as error:  # a decoder may raise anything on damaged bytes
            skipped[image.key] = _reason(error)
        else:
            yield image, stored


def _reason(error: Exception) -> str:
    """Why an image cannot be read, without the place of the raw data, as the manifest is the same wherever that lies."""
    return f"{type(error).__name__}: {(isinstance(error, OSError) and error.strerror) or error}"


def _index(path: Path, kept: list[tuple[Image, images.Stored]]) -> np.ndarray:
    """The INDEX rows of a shard, whose number is not known to it."""
    with tarfile.open(path) as tar:
        members = [member for member in tar if not member.name.endswith(".cls")]
    rows = np.zeros(len(kept), INDEX)
    for row, member, (image, stored) in zip(rows, members, kept, strict=True):
        height, width = stored.size
        length = height * width * 3 or member.size  # pixels are the end of their file, after its header
        row["offset"], row["length"] = member.offset_data + member.size - length, length
        row["label"], row["height"], row["width"], row["orientation"] = (
            image.label,
            height,
            width,
            stored.orientation,
        )
    return rows
