"""The shards to write, by worker processes; notes on finished ones make preparation restartable."""

import functools
import hashlib
import json
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cl.images.bands import Bands
from cl.images.decoding import Levels, reads_heic
from cl.images.folders import status_of
from cl.images.image import Image
from cl.runtime import stores
from cl.runtime.files import finished
from cl.runtime.forking import ctrl_c_delayed, exit_with_parent
from cl.shards import tiles
from cl.shards.encoding import Encoded, encode, encode_bands
from cl.shards.manifest import Shard
from cl.shards.packing import Packed, pack
from cl.sources import Storage


class Job(NamedTuple):
    """Shard `number` of a split."""

    split: str
    number: int

    @property
    def stem(self) -> str:
        """The name of the shard without its extension."""
        return f"{self.split}-{self.number:06d}"


@dataclass(frozen=True)
class Work:
    """The shards to write: shard i of a split holds images i k to (i + 1) k - 1, k = storage.shard_images."""

    orders: dict[str, Sequence[Image]]
    storage: Storage
    levels: Levels
    folder: Path
    bands: Bands | None = None

    @property
    def notes(self) -> Path:
        """The folder of notes on finished shards, with a digest of their inputs."""
        return self.folder / "notes"

    def jobs(self, split: str) -> list[Job]:
        count = -(-len(self.orders[split]) // self.storage.shard_images)
        return [Job(split, number) for number in range(count)]

    def listed(self, job: Job) -> list[Image]:
        size = self.storage.shard_images
        return list(self.orders[job.split][job.number * size : (job.number + 1) * size])

    def note(self, job: Job) -> Path:
        return self.notes / f"{job.stem}.note"

    def write(self, job: Job) -> None:
        """Write a shard and its note."""
        packed = pack(self.listed(job), self._encode, self.folder / f"{job.stem}.tar")
        save_note(self.note(job), replace(packed, shard=self._deliver(packed.shard)))

    def _encode(self, content: bytes, samples: list[Image]) -> Iterable[Encoded]:
        """What shards store of an image, or of its tiles."""
        if self.bands:
            return [encode_bands(content, self.bands)]
        if isinstance(samples[0], tiles.Tile):
            return tiles.encode(content, samples, self.storage, self.levels)
        return [encode(content, self.storage, self.levels)]

    def _deliver(self, shard: Shard) -> Shard:
        """Move a shard to the store, if configured, under a name with its hash; remove an empty shard."""
        path, store = self.folder / shard.name, self.storage.store
        if shard.images and not store:
            return shard
        if shard.images and store:
            shard = shard.model_copy(update={"name": f"{path.stem}-{shard.sha256[:12]}.tar"})
            stores.upload(path, f"{store.rstrip('/')}/{shard.name}")
        path.unlink()
        return shard

    def begin(self, kind: str) -> None:
        """Create the folder; clear it if its shards come from other images, settings, code or formats."""
        digest, origin = self._digest(kind), self.notes / "origin"
        self.folder.mkdir(parents=True, exist_ok=True)
        if origin.is_file() and origin.read_text() == digest:
            self._forget_unfinished()
            return
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.notes.mkdir()
        origin.write_text(digest)

    def _forget_unfinished(self) -> None:
        """Remove leftovers of killed processes, and notes on missing shards."""
        for path in self.folder.rglob("*.partial"):
            path.unlink()
        present = stores.sizes(self.storage.store or str(self.folder)) or {}
        for path in self.notes.glob("*.note"):
            shard = load_note(path).shard
            if shard.images and present.get(shard.name) != shard.bytes:
                path.unlink()

    def _digest(self, kind: str) -> str:
        settings = self.storage.model_dump_json(), self.levels, self.bands, reads_heic()
        sha = hashlib.sha256(f"{kind} {settings}".encode())
        for module in sorted(Path(__file__).parent.glob("*.py")):
            sha.update(module.read_bytes())
        look_up = functools.cache(status_of)
        for image in (image for order in self.orders.values() for image in order):
            status = look_up(image.path) if image.status is None else image.status
            facts = (image.key, image.label, image.group, image.place, status)
            sha.update("\0".join(map(str, facts)).encode() + b"\n")
        return sha.hexdigest()


def save_note(path: Path, packed: Packed) -> None:
    """Write the note on a finished shard to disk; it appears only when complete."""
    facts = {"shard": packed.shard.model_dump(), "counts": packed.counts, "skipped": packed.skipped}
    encoded = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with finished(path) as partial, partial.open("wb") as file:
        np.savez(file, rows=packed.rows, keys=packed.keys, digests=packed.digests, facts=encoded)
        file.flush()
        os.fsync(file.fileno())


def load_note(path: Path) -> Packed:
    """Read a note that `save_note` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        rows, keys, digests = (arrays[name] for name in ("rows", "keys", "digests"))
    shard, counts = Shard(**facts["shard"]), Counter(facts["counts"])
    return Packed(shard, rows, keys, digests, counts, facts["skipped"])


def run(work: Work, report: Callable[..., None], workers: int) -> None:
    """Write the unfinished shards."""

    def count(job: Job, *, kept: bool = False) -> None:
        report(len(tiles.images_begun(work.listed(job))), kept=kept)

    unfinished = []
    for job in (job for split in work.orders for job in work.jobs(split)):
        if work.note(job).exists():
            count(job, kept=True)
        else:
            unfinished.append(job)
    if workers > 1:
        _run_in_workers(work, unfinished, workers, count)
        return
    for job in unfinished:
        work.write(job)
        count(job)


def _run_in_workers(work: Work, jobs: list[Job], workers: int, count: Callable[[Job], None]) -> None:
    fork = multiprocessing.get_context("fork")  # shares the list of images without a copy
    pool = ProcessPoolExecutor(workers, fork, initializer=_start_worker, initargs=(work,))
    try:
        with ctrl_c_delayed():
            pending = {pool.submit(_write_in_worker, job): job for job in jobs}
        for written in futures.as_completed(pending):
            written.result()
            count(pending[written])
    except BrokenProcessPool as error:
        raise ValueError(
            "a worker was killed, perhaps because memory ran out; run again to continue from here"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_work: Work  # in a worker process


def _start_worker(work: Work) -> None:
    """Keep the work, and exit if the parent dies."""
    global _work
    _work = work
    exit_with_parent()


def _write_in_worker(job: Job) -> None:
    _work.write(job)
