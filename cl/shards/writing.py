"""Images to WebDataset shards: in parallel, byte by byte the same for any number of workers, and restartable."""

import fcntl
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

from cl.shards import images, manifest, packing
from cl.shards.manifest import INDEX, Manifest, Shard, Split
from cl.sources import UNLABELLED, Image, Splits, Storage

LONGEST_KEY = 200  # bytes


def write(
    splits: Splits, kind: str, storage: Storage, folder: Path, report: Callable[..., None], *, workers: int
) -> Manifest:
    """Write the shards, the index and the manifest of both splits into `folder`, where nobody else may write (`exclusive`).

    Shards that an earlier call with the same arguments finished before it was killed are kept.

    Args:
        report: called with the number of images done since the last call, and `kept=True` if an earlier call did them.
        workers: processes; the bytes do not depend on it.

    Raises:
        ValueError: two images have the same key, a key is too long, a class has no readable image, or a worker was killed.
        OSError: the disk is full, or the like; no half shard is left.
    """
    orders = {"train": _shuffled(splits.train), "val": _shuffled(splits.val)}
    folder.mkdir(parents=True, exist_ok=True)
    work = Work(orders, storage, folder)
    work.begin(kind)
    _run(work, report, workers)
    try:
        written = {name: _finish(name, splits.classes, work) for name in orders}
    except ValueError:
        shutil.rmtree(folder)
        raise
    whole = Manifest(
        kind=kind,
        storage=storage.model_dump(include=set(Storage.model_fields)),
        classes=splits.classes,
        classes_sha256=hashlib.sha256("\n".join(splits.classes).encode()).hexdigest(),
        splits=written,
    )
    (folder / "manifest.json").write_text(whole.model_dump_json(indent=1) + "\n")
    shutil.rmtree(work.notes)
    return whole


def _shuffled(listed: list[Image]) -> list[Image]:
    """Neighbours in a shard should not share a class: readers shuffle within a window only."""
    _check_keys(listed)
    order = np.random.Generator(np.random.Philox(key=len(listed))).permutation(len(listed))
    return [listed[i] for i in order]


def _check_keys(listed: list[Image]) -> None:
    seen: dict[str, Path] = {}
    for image in listed:
        if len(image.key.encode()) > LONGEST_KEY:
            raise ValueError(f"the name of {image.path} is longer than {LONGEST_KEY} bytes: rename it")
        if image.key in seen:
            raise ValueError(
                f"{seen[image.key]} and {image.path} have the same name {image.key!r} without extension: rename one"
            )
        seen[image.key] = image.path


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Nobody else, nor a worker that outlived its killed parent, writes below the folder.

    Raises:
        ValueError: somebody does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"another process is writing into {folder}: wait until it has finished, or stop it"
            ) from error
        yield
    finally:
        os.close(lock)


@dataclass(frozen=True)
class Work:
    """The shards to be written: number i of a split holds the i-th `storage.shard_images` images of its order."""

    orders: dict[str, list[Image]]
    storage: Storage
    folder: Path

    @property
    def notes(self) -> Path:
        """The folder with the notes on finished shards, and with what they were made from."""
        return self.folder / "notes"

    def jobs(self) -> list[tuple[str, int]]:
        """Split and number of every shard."""
        return [
            (name, number)
            for name, order in self.orders.items()
            for number in range(-(-len(order) // self.storage.shard_images))
        ]

    def listed(self, name: str, number: int) -> list[Image]:
        """The images of one shard."""
        size = self.storage.shard_images
        return self.orders[name][number * size : (number + 1) * size]

    def shard(self, name: str, number: int) -> Path:
        """Where a shard lies when it is whole."""
        return self.folder / f"{name}-{number:06d}.tar"

    def note(self, name: str, number: int) -> Path:
        """Where a shard is noted as finished."""
        return self.notes / f"{name}-{number:06d}.npz"

    def begin(self, kind: str) -> None:
        """Clear the folder, unless it holds shards of the same images, stored in the same way by the same code."""
        sha = hashlib.sha256(f"{kind} {self.storage.model_dump_json()}".encode())
        for module in (__file__, images.__file__, manifest.__file__, packing.__file__):
            sha.update(Path(module).read_bytes())
        status: dict[Path, str] = {}
        for image in (image for order in self.orders.values() for image in order):
            if image.path not in status:
                found = image.path.stat() if image.path.exists() else None
                status[image.path] = f"{found.st_size} {found.st_mtime_ns}" if found else "missing"
            sha.update(f"{image.key}\0{image.label}\0{image.path}\0{status[image.path]}\n".encode())
        origin = self.notes / "origin"
        if not origin.is_file() or origin.read_text() != sha.hexdigest():
            for path in self.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.notes.mkdir()
            origin.write_text(sha.hexdigest())


def _run(work: Work, report: Callable[..., None], workers: int) -> None:
    jobs = []
    for name, number in work.jobs():
        if work.note(name, number).is_file() and work.shard(name, number).is_file():
            report(len(work.listed(name, number)), kept=True)
        else:
            jobs.append((name, number))
    if workers == 1:
        for name, number in jobs:
            report(_write_shard(work, name, number))
        return
    fork = multiprocessing.get_context("fork")  # which hands the images over without a copy
    pool = ProcessPoolExecutor(workers, fork, initializer=_start, initargs=(work,))
    try:
        for done in as_completed([pool.submit(_write_one, *job) for job in jobs]):
            report(done.result())
    except BrokenProcessPool as error:
        raise ValueError(
            "a worker was killed, perhaps as memory ran out: run again, it goes on from here"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_work: Work  # of a worker process


def _start(work: Work) -> None:
    """In a worker: Ctrl-C is the parent's matter, and without a parent there is nothing left to do."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def _write_one(name: str, number: int) -> int:
    return _write_shard(_work, name, number)


def _write_shard(work: Work, name: str, number: int) -> int:
    """A shard and the note on it; returns the number of images seen."""
    listed = work.listed(name, number)
    packed = packing.pack(listed, work.storage, work.shard(name, number))
    notes = {
        "shard": packed.shard.model_dump(),
        "reencoded": packed.reencoded,
        "turned": packed.turned,
        "skipped": packed.skipped,
    }
    content = io.BytesIO()
    np.savez(
        content, rows=packed.rows, keys=packed.keys, notes=np.frombuffer(json.dumps(notes).encode(), np.uint8)
    )
    note = work.note(name, number)
    with note.with_suffix(".partial").open("wb") as file:
        file.write(content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    os.replace(note.with_suffix(".partial"), note)
    return len(listed)


def _finish(name: str, classes: list[str], work: Work) -> Split:
    """The index of a split from the notes on its shards; shards without an image are left out."""
    rows, keys = [np.empty(0, INDEX)], [np.empty(0, "S1")]
    kept: list[Shard] = []
    skipped: dict[str, str] = {}
    totals = {"reencoded": 0, "turned": 0}
    for _, number in (job for job in work.jobs() if job[0] == name):
        with np.load(work.note(name, number), allow_pickle=False) as found:
            note = json.loads(found["notes"].tobytes())
            shard = Shard(**note["shard"])
            skipped |= note["skipped"]
            if shard.images:
                rows.append(found["rows"])
                rows[-1]["shard"] = len(kept)
                keys.append(found["keys"])
                kept.append(shard)
                totals = {key: totals[key] + note[key] for key in totals}
            else:
                (work.folder / shard.name).unlink(missing_ok=True)
    index = np.concatenate(rows)
    labels = index["label"][index["label"] != UNLABELLED]
    empty = np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0)
    if len(empty):
        reasons = "; ".join(f"{key}: {why}" for key, why in list(skipped.items())[:3])
        raise ValueError(f"class {classes[empty[0]]} has no readable image in {name} ({reasons})")
    for file, array in ((f"{name}.npy", index), (f"{name}_keys.npy", np.concatenate(keys))):
        content = io.BytesIO()  # NumPy writing to a file hides why it fails
        np.save(content, array)
        (work.folder / file).write_bytes(content.getbuffer())
    return Split(images=len(index), shards=kept, skipped=skipped, **totals)
