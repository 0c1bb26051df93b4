"""Reading remote shards, and the size of their cache."""

import fcntl
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cl.data.reader import Reader


def cache_bytes(cache: Path) -> int:
    """The bytes in a cache, under its lock: otherwise files that come and go would be counted together."""
    if not (cache / "used").exists():
        return 0
    with open(cache / "used") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        total = 0
        for path in cache.rglob("*"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size if path.is_file() else 0
        return total


def shard_bytes(reader: Reader) -> int:
    return sum(shard.bytes for shard in reader.manifest.splits["train"].shards)


def smallest_limit(folder: Path) -> int:
    """The smallest limit that holds two windows of 64 samples."""
    reader = Reader(folder, "train")
    return int(1.05 * shard_bytes(reader) * 2 * 64 / len(reader)) + 1


def assert_reads_equal(reader: Reader, other: Reader, positions: Iterable[int]) -> None:
    for position in positions:
        assert reader.read(position) == other.read(position)
