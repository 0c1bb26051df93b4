"""Write one WebDataset shard from a list of images, with the same bytes in every run."""

import hashlib
import os
import tarfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import numpy as np
import webdataset

from cl.images.image import Image
from cl.runtime.files import UNREACHABLE, finished, reason
from cl.runtime.stores import is_url
from cl.shards import duplicates, tiles
from cl.shards.encoding import Encoded
from cl.shards.manifest import INDEX, Shard

THREADS = 16  # per worker, to fetch remote images
COUNTED = ("reencoded", "turned", "several_frames", "flat")  # fields of `Encoded` and of `manifest.Split`
Samples = tuple[list[Image], Callable[[], bytes]]  # the samples of one image, and what reads its file
Encode = Callable[[bytes, list[Image]], Iterable[Encoded]]  # a file's content, for each sample of its image


@dataclass(frozen=True)
class Packed:
    """A shard, and the entries of index and manifest for its n images.

    rows: (n,) INDEX, without the shard's number. keys: (n,) bytes. skipped: the reason by key.
    digests: (m, 2) uint64, of the files of the m images that begin in the shard; zeros for skipped ones.
    counts: the number of images with each property in COUNTED.
    """

    shard: Shard
    rows: np.ndarray
    keys: np.ndarray
    digests: np.ndarray
    counts: Counter[str]
    skipped: dict[str, str]


def pack(listed: list[Image], encode: Encode, target: Path) -> Packed:
    """Write the readable images to `target`, which appears only when complete.

    Raises:
        OSError: for example, the disk is full; nothing is left behind.
    """
    skipped: dict[str, str] = {}
    digests: dict[str, bytes] = {}
    with finished(target) as partial:  # a process of an earlier run may still be writing the same shard
        kept = _write_tar(partial, _readable(listed, encode, skipped, digests))
        rows = _index(partial, kept)
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        shard = Shard(name=target.name, images=len(kept), bytes=partial.stat().st_size, sha256=digest)
    begun = [digests.get(image.key, duplicates.UNREAD) for image in tiles.images_begun(listed)]
    keys = np.array([image.key.encode() for image, _ in kept], dtype=bytes)
    counts = Counter({name: sum(getattr(encoded, name) for _, encoded in kept) for name in COUNTED})
    return Packed(shard, rows, keys, duplicates.as_array(begun), counts, skipped)


def _write_tar(path: Path, samples: Iterable[tuple[Image, Encoded]]) -> list[tuple[Image, Encoded]]:
    """Write the samples to disk; return them without their contents."""
    kept = []
    with path.open("wb") as file:
        sink = _Sink(file)
        writer = webdataset.TarWriter(sink, user="cl", group="cl", mode=0o644, mtime=0)
        try:
            for image, encoded in samples:
                label = str(image.label)
                writer.write({"__key__": image.key, encoded.extension: encoded.content, "cls": label})
                kept.append((image, encoded._replace(content=b"")))
        except BaseException:
            sink.failed = True
            raise
        writer.close()
        file.flush()
        os.fsync(file.fileno())
    return kept


class _Sink:
    """A file that drops all writes after a failure, because tarfile's destructor writes once more."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.failed = file, False

    def write(self, content: bytes) -> int:
        return len(content) if self.failed else self.file.write(content)


def _readable(
    listed: list[Image], encode: Encode, skipped: dict[str, str], digests: dict[str, bytes]
) -> Iterator[tuple[Image, Encoded]]:
    """Yield the readable images or their tiles, and add to `digests`; add the others to `skipped`."""
    by_image = groupby(listed, key=lambda image: tiles.whole_of(image).key)
    for samples, reading in _read_ahead(list(samples) for _, samples in by_image):
        whole = tiles.whole_of(samples[0])
        try:
            content = reading()
        except OSError as error:
            if error.errno not in UNREACHABLE:
                raise
            skipped[whole.key] = reason(error)
            continue
        digests[whole.key] = duplicates.digest(content)
        try:
            yield from zip(samples, encode(content, samples), strict=True)
        except MemoryError:
            raise
        except Exception as error:  # decoders may raise anything on damaged bytes
            skipped[whole.key] = reason(error)
            del digests[whole.key]


def _read_ahead(images: Iterator[list[Image]]) -> Iterator[Samples]:
    """Pair the samples of each image with what reads its file; threads fetch remote images ahead."""
    waiting: deque[Samples] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        for samples in images:
            whole = tiles.whole_of(samples[0])
            waiting.append((samples, pool.submit(whole.read).result if is_url(whole.place) else whole.read))
            if len(waiting) > 2 * THREADS:
                yield waiting.popleft()
        yield from waiting


def _index(path: Path, kept: list[tuple[Image, Encoded]]) -> np.ndarray:
    """The INDEX rows of a shard, without its number."""
    with tarfile.open(path) as tar:
        members = [member for member in tar if not member.name.endswith(".cls")]
    rows = np.zeros(len(kept), INDEX)
    for number, (member, (image, encoded)) in enumerate(zip(members, kept, strict=True)):
        offset = member.offset_data + member.size - encoded.length
        rows[number] = 0, offset, encoded.length, image.label, *encoded.size, encoded.orientation
    return rows
