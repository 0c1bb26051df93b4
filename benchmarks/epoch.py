"""The requests and the cache of one epoch of a billion images in an object store, replayed without images.

`python -m benchmarks.epoch [IMAGES]`: the order is that of `cl.data.order`, the pieces are those of
`cl.data.remote`, and a cache evicts as `cl.data.cache` does, but holds no bytes. The processes of a node keep
in step, share a cache, and prefetch what `cl.data.sets` announces, up to the end of the epoch. The pieces
that each node needs are counted on all nodes. On the first node, a replay shows whether a cache keeps them
for as long as they are needed. Rates follow from these counts and from an assumed speed of the GPUs.
"""

import math
import resource
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click
import numpy as np

from cl.data import order, sets
from cl.data.cache import SLACK, Cache
from cl.data.order import Plan
from cl.data.remote import RemoteFiles
from cl.shards.manifest import Shard

SHARD_IMAGES, IMAGE_BYTES = 10_000, 110_000
KINDS = (np.uint8, np.uint16, np.uint32, np.uint64)  # with a bit for each node
CACHES = {2.1: math.inf, 1.0: 2000}  # windows, steps; `cl.data.remote` refuses less than 2.1


@dataclass(frozen=True)
class Column:
    """One column of the index of shards of equal images, calculated where it is read: stored, it is 25 GB."""

    name: str

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        shard, number = np.divmod(positions, SHARD_IMAGES)
        length = np.full_like(number, IMAGE_BYTES)
        return {"shard": shard, "offset": number * IMAGE_BYTES, "length": length}[self.name]


class Index:
    """As many rows of the index as there are images."""

    def __init__(self, images: int) -> None:
        self.images = images

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, name: str) -> Column:
        return Column(name)


class Pieces:
    """The pieces into which `RemoteFiles` divides shards, looked up faster than by its search."""

    def __init__(self, files: RemoteFiles) -> None:
        self.sizes: np.ndarray = files._stop - files._start
        chunk, within = np.divmod(files._firsts, order.CHUNK)
        self._first = np.flatnonzero(within == 0)  # piece of each chunk's first image
        # Where the next shard begins within a chunk, a second piece does.
        self._second = np.full(len(self._first), order.CHUNK)
        self._second[chunk[within > 0]] = within[within > 0]
        assert len(self.sizes) == len(self._first) + (self._second < order.CHUNK).sum()

    def of(self, positions: np.ndarray) -> np.ndarray:
        """The piece of each position of the index."""
        chunk, within = np.divmod(positions, order.CHUNK)
        return self._first[chunk] + (within >= self._second[chunk])


class NodeCache:
    """The pieces in a cache of at most `limit` bytes, and what happened to it."""

    def __init__(self, limit: int, sizes: np.ndarray) -> None:
        self.limit, self.used, self._sizes = limit, 0, sizes
        self._kept: OrderedDict[int, int] = OrderedDict()  # pieces and sizes, the least recently used first
        self._requested = bytearray(len(sizes))
        self.steps = self.requests = self.again = self.evictions = self.largest = 0

    def step(self, announced: list[int], read: list[int]) -> None:
        """Fetch those announced that are missing, then use those that are read."""
        for piece in dict.fromkeys([piece for piece in announced if piece not in self._kept]):
            self._fetch(piece)
        for piece in read:
            if piece not in self._kept:
                self._fetch(piece)
            self._kept.move_to_end(piece)
        self.steps += 1

    def _fetch(self, piece: int) -> None:
        size = self._sizes.item(piece)
        if self.used + size > self.limit:
            self._evict(self.limit - self.limit // SLACK - size)
        self._kept[piece] = size
        self.used += size
        self.largest = max(self.largest, self.used)
        self.requests += 1
        self.again += self._requested[piece]
        self._requested[piece] = 1

    def _evict(self, target: int) -> None:
        while self._kept and self.used > target:
            self.used -= self._kept.popitem(last=False)[1]
            self.evictions += 1


class Nodes:
    """What each of a number of nodes needs, and the first of them with caches of several sizes.

    Args:
        limits: bytes of each cache, and the number of steps for which it is replayed.
    """

    def __init__(self, nodes: int, pieces: Pieces, limits: dict[int, float]) -> None:
        kind = next(kind for kind in KINDS if 8 * kind().itemsize >= nodes)
        self.nodes, self._sizes = nodes, pieces.sizes
        self._bits = np.left_shift(kind(1), np.arange(nodes, dtype=kind))
        self._needed = np.zeros(len(pieces.sizes), kind)  # bit n: by node n
        self._ahead: deque[list[int]] = deque()  # announced steps that the first node has not read yet
        self.caches = {NodeCache(limit, pieces.sizes): steps for limit, steps in limits.items()}

    def prefetch(self, pieces: np.ndarray) -> None:
        """One more step, with the piece of each image of its batch."""
        share = len(pieces) // self.nodes
        np.bitwise_or.at(self._needed, pieces, np.repeat(self._bits, share))
        self._ahead.append(_by_first_use(pieces[:share]))

    def read(self) -> None:
        """Read the earliest step that was not read; it is announced once more, with all later ones."""
        announced = [piece for step in self._ahead for piece in step]
        for cache, steps in self.caches.items():
            if cache.steps < steps:
                cache.step(announced, self._ahead[0])
        self._ahead.popleft()

    def needed(self) -> np.ndarray:
        """(nodes, 2): the number of pieces that each node needs, and their bytes."""
        found = ((self._needed & bit) > 0 for bit in self._bits)
        return np.array([(int(mine.sum()), int(self._sizes[mine].sum())) for mine in found])


def _by_first_use(pieces: np.ndarray) -> list[int]:
    """The different pieces, in the order of their first use."""
    numbered = np.sort(pieces * len(pieces) + np.arange(len(pieces)))
    number, first = np.divmod(numbered, len(pieces))
    new = np.append(True, number[1:] > number[:-1])
    return number[new][np.argsort(first[new])].tolist()


def replay(plan: Plan, pieces: Pieces, numbers: Sequence[int], limits: dict[int, float]) -> list[Nodes]:
    """One epoch on each of these numbers of nodes."""
    nodes = [Nodes(number, pieces, limits) for number in numbers]
    ahead = sets.PREFETCHED // plan.batch_size
    for step in range(plan.steps_per_epoch + ahead):
        if step < plan.steps_per_epoch:
            batch = pieces.of(plan.step(step)[1])
            for each in nodes:
                each.prefetch(batch)
        if step >= ahead:
            for each in nodes:
                each.read()
    return nodes


def files_of(images: int) -> RemoteFiles:
    """The byte ranges of shards of equal images, as every process calculates them."""
    ends = [*range(SHARD_IMAGES, images, SHARD_IMAGES), images]
    shards = [
        Shard(name=f"train-{number:06d}.tar", images=count, bytes=count * IMAGE_BYTES, sha256="")
        for number, count in enumerate(np.diff(ends, prepend=0).tolist())
    ]
    cache = Cache(Path("unused"), images * 2 * IMAGE_BYTES)
    return RemoteFiles("https://unused", cache, "unused", shards, cast(np.ndarray, Index(images)))


@click.command()
@click.argument("images", default=10**9)
@click.option("--batch", default=4096, help="Images per step, over all nodes.")
@click.option("--nodes", default=[1, 8, 64], multiple=True, type=click.IntRange(1, 64))
@click.option("--gpus", default=8, help="GPUs per node.")
@click.option("--speed", default=1037.5, help="Images per second that a GPU is assumed to train on.")
def main(images: int, batch: int, nodes: list[int], gpus: int, speed: float) -> None:
    """Replay one epoch of IMAGES images on each number of nodes."""
    if any(batch % (number * gpus) for number in nodes):
        raise click.UsageError(f"--batch={batch} must be a multiple of the GPUs on {max(nodes)} nodes")
    before = _peak()
    plan, files = Plan(images, batch, seed=0), files_of(images)
    plan.step(0)
    memory = _peak() - before
    pieces = Pieces(files)
    window = images * IMAGE_BYTES * min(1.0, order.WINDOW * order.CHUNK / images)
    found = replay(plan, pieces, nodes, {int(part * window): steps for part, steps in CACHES.items()})
    size = f"{images * IMAGE_BYTES / 1e12:.3g} TB in {len(pieces.sizes):,} pieces"
    print(f"{images:,} images, {size}; {plan.steps_per_epoch:,} steps of {batch:,}")
    _print_needed(found, plan.steps_per_epoch * batch, gpus, speed)
    _print_caches(found, window)
    print(f"\norder and byte ranges in each process: {memory / 1e9:.2f} GB at their peak")
    print(f"this replay: {_peak() / 1e9:.2f} GB, {time.process_time():.0f} s of one core")


def _print_needed(found: list[Nodes], images: int, gpus: int, speed: float) -> None:
    print("\nCounted on all nodes; hits: images that needed no request of their own; rates for an assumed")
    print(f"{speed:,g} images/s per GPU and {gpus} GPUs per node")
    print("| nodes | requests | images per request | hits | TB | epoch, h | requests/s | GB/s | per node |")
    print("|---" * 9 + "|")
    for each in found:
        requests, size = each.needed().sum(0).tolist()
        seconds = images / (each.nodes * gpus * speed)
        rate = size / 1e9 / seconds
        row: list[Any] = [
            each.nodes,
            f"{requests:,}",
            f"{images / requests:.1f}",
            f"{1 - requests / images:.1%}",
        ]
        row += [f"{size / 1e12:,.0f}", f"{seconds / 3600:.1f}", f"{requests / seconds:,.0f}"]
        print("| " + " | ".join(map(str, [*row, f"{rate:,.1f}", f"{rate / each.nodes:.1f}"])) + " |")


def _print_caches(found: list[Nodes], window: float) -> None:
    print("\nReplayed on the first node; again: requests for a piece that was requested before")
    print("| nodes | steps | cache, windows | GB | largest content, GB | requests | again | evictions |")
    print("|---" * 8 + "|")
    for each in found:
        for cache in each.caches:
            row: list[Any] = [each.nodes, f"{cache.steps:,}", f"{cache.limit / window:.1f}"]
            row += [f"{cache.limit / 1e9:.2f}", f"{cache.largest / 1e9:.2f}"]
            row += [f"{cache.requests:,}", f"{cache.again:,}", f"{cache.evictions:,}"]
            print("| " + " | ".join(map(str, row)) + " |")


def _peak() -> int:
    """The largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
