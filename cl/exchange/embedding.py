"""Features of all images below a folder, in parts that survive a kill and are merged at the end."""

import csv
import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cl.data import ring
from cl.exchange.encoder import Encoder
from cl.exchange.feature_files import FORMATS
from cl.exchange.listing import Listing
from cl.features.extraction import BATCH, FEW
from cl.runtime.distributed import rank, ranks
from cl.runtime.machine import Machine, to_device
from cl.runtime.tensor_files import load_tensors, save_tensors

PART = 16 * BATCH  # images
REASON = 200  # bytes for the reason why an image cannot be read


@dataclass(frozen=True)
class Work:
    """The images below `root`, their encoder, and the file to write.

    Part i has images i PART to (i + 1) PART - 1 of the listing.
    """

    root: Path
    encoder: Encoder
    target: Path

    @property
    def folder(self) -> Path:
        """The listing and the finished parts."""
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def listing(self) -> Listing:
        return Listing(self.root, self.folder)

    @property
    def parts(self) -> range:
        return range(-(-len(self.listing) // PART))

    def images(self, part: int) -> range:
        """The positions of a part's images in the listing."""
        return range(part * PART, min((part + 1) * PART, len(self.listing)))

    def path(self, part: int) -> Path:
        """The file of a finished part."""
        return self.folder / f"part-{part:06d}.safetensors"

    @property
    def notes(self) -> dict[str, str]:
        """Which encoder it is, and how it sees images."""
        return {"sha256": self.encoder.sha256, "transform": self.encoder.transform.model_dump_json()}

    def begin(self) -> Counter[str]:
        """List the images, and drop parts of another listing or encoder.

        Returns:
            The number of other files by reason.

        Raises:
            ValueError: there are no images, or a name cannot be listed.
        """
        listed, left_out = self.listing.write()
        if not len(self.listing):
            shutil.rmtree(self.folder)
            others = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
            raise ValueError(f"no images below {self.root}; found {others or 'no files at all'}")
        identity = hashlib.sha256(f"{listed} {self.notes} {PART}".encode()).hexdigest()
        note = self.folder / "identity"
        if not note.is_file() or note.read_text() != identity:
            for path in self.folder.glob("part-*.safetensors"):
                path.unlink()
            note.write_text(identity)
        return left_out


@contextmanager
def exclusive(work: Work) -> Iterator[None]:
    """Keep other processes from the same work; unlike `flock`, the lock is not inherited by data workers.

    Raises:
        ValueError: another process is at it.
    """
    work.folder.mkdir(parents=True, exist_ok=True)
    with (work.folder / "lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise ValueError(
                f"another process is writing {work.target}; wait until it has finished, or stop it"
            ) from error
        yield


def compute(work: Work, machine: Machine, report: Callable[..., None]) -> None:
    """Write the unfinished parts of this process; every W-th part is one of its own.

    Args:
        report: called with the number of images just done; `kept=True` for those done before this call.
    """
    unfinished = []
    for part in work.parts[rank() :: ranks()]:
        if work.path(part).is_file():
            report(len(work.images(part)), kept=True)
        else:
            unfinished.append(part)
    encoded = _encoded(work, unfinished, machine)
    for part in unfinished:
        images = work.images(part)
        features, reasons = zip(*(next(encoded) for _ in images[::BATCH]), strict=True)
        _save(work, part, torch.cat(features), [reason for batch in reasons for reason in batch])
        report(len(images))


@torch.no_grad()
def _encoded(work: Work, parts: list[int], machine: Machine) -> Iterator[tuple[Tensor, list[str]]]:
    """For each batch: features (N, D) on the CPU, and why an image cannot be read, or ""."""
    starts = [start for part in parts for start in work.images(part)[::BATCH]]
    count, side, transform = len(work.listing), work.encoder.transform.crop, work.encoder.transform

    def fill(batch: int, rows: slice, arrays: list[np.ndarray]) -> None:
        names = work.listing.names(starts[batch] + rows.start, starts[batch] + rows.stop)
        for name, pixels, reason in zip(names, *arrays, strict=True):
            pixels[:] = reason[:] = 0
            try:
                pixels[:] = transform.pixels(work.root / name)
            except (ValueError, FileNotFoundError, PermissionError) as error:
                text = np.frombuffer(_reason(error).encode()[:REASON], np.uint8)
                reason[: len(text)] = text

    arrays = [ring.Array((side, side, 3), np.uint8), ring.Array((REASON,), np.uint8)]
    workers = machine.workers if len(starts) * BATCH > FEW else 0
    batches = ring.filled(
        fill, range(len(starts)), lambda batch: min(BATCH, count - starts[batch]), arrays, workers
    )
    for pixels, reasons in batches:
        images = to_device(torch.from_numpy(pixels).permute(0, 3, 1, 2), machine.device)
        features = work.encoder(transform.normalise(images)).float().cpu()
        yield features, [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in reasons]


def _reason(error: Exception) -> str:
    """Why an image cannot be read, without its path."""
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {(isinstance(cause, OSError) and cause.strerror) or cause}"


def _save(work: Work, part: int, features: Tensor, reasons: list[str]) -> None:
    images = work.images(part)
    names = work.listing.names(images.start, images.stop)
    skipped = {name: reason for name, reason in zip(names, reasons, strict=True) if reason}
    readable = torch.tensor([not reason for reason in reasons])
    save_tensors({"features": features[readable]}, work.path(part), {"skipped": json.dumps(skipped)})


def merge(work: Work) -> tuple[int, Counter[str]]:
    """Merge all parts into the target and a table of the images that cannot be read, and remove the parts.

    Returns:
        The number of images with features, and that of the others by reason.

    Raises:
        ValueError: no image can be read.
    """
    embedded, reasons = 0, Counter[str]()
    file = FORMATS[work.target.suffix](work.folder / work.target.name, work.encoder.width, work.notes)
    table = work.folder / f"{work.target.name}.skipped.csv"
    with closing(file), table.open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(["name", "reason"])
        for part in work.parts:
            names, features, skipped = _load(work, part)
            if names:
                file.append(names, features)
            writer.writerows(skipped.items())
            embedded += len(names)
            reasons.update(skipped.values())
    if not embedded:
        raise ValueError(f"none of the images below {work.root} can be read: {next(iter(reasons))}")
    for path in (table, *file.paths):
        _publish(path, work.target.parent)
    shutil.rmtree(work.folder)
    return embedded, reasons


def _load(work: Work, part: int) -> tuple[list[str], np.ndarray, dict[str, str]]:
    """A finished part: names and features (n, D) of the images that can be read; why the others cannot."""
    tensors, metadata = load_tensors(work.path(part))
    images, skipped = work.images(part), json.loads(metadata["skipped"])
    names = [name for name in work.listing.names(images.start, images.stop) if name not in skipped]
    return names, tensors["features"].numpy(), skipped


def _publish(path: Path, folder: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(path, folder / path.name)
