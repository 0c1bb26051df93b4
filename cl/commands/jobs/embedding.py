"""Features of many images: parts survive an interruption and are merged at the end."""

import hashlib
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cl.commands.inputs import feature_files
from cl.commands.inputs.listing import ImageNames, root_of, suffixes_for
from cl.commands.inputs.matching import notes_of
from cl.data import ring
from cl.encoders.encoder import Encoder, not_finite
from cl.features.extraction import FEW
from cl.images.decoding import reads_heic
from cl.networks.passes import dense_features
from cl.runtime.distributed import rank, ranks
from cl.runtime.files import LOCK, UNREACHABLE, clear, reason
from cl.runtime.machine import Machine, to_device
from cl.runtime.tables import write_csv
from cl.runtime.tensor_files import load_tensors, save_tensors

BATCH = 64  # images encoded at a time: 256 of 224 px take gigabytes
PART = 16 * BATCH  # images, which an interrupted run may lose
REASON = 200  # bytes for the reason why an image is unreadable
OURS = re.compile(rf"{LOCK}|identity|listing|merged|[0-9a-f]{{64}}|\.nfs.*")  # names in the folder of a job


@dataclass(frozen=True)
class EmbeddingJob:
    """The images that `inputs` name (see `cl.commands.inputs.listing`), their encoder, and the file to write.

    Part i covers images i S to (i + 1) S - 1 of the listing, with S = `part_size`.
    """

    inputs: Sequence[Path]
    encoder: Encoder
    target: Path
    patches: bool = False  # `encoder.patches` instead of one feature vector per image
    origin: dict[str, str] = field(default_factory=dict)  # where the encoder was found, for later commands

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of an image's features: (D,), or (H', W', D) of patches."""
        if not self.patches:
            return (self.encoder.width,)
        side, channels = self.encoder.transform.crop, self.encoder.transform.channels
        return tuple(self.encoder.patches(torch.zeros(1, channels, side, side)).shape[1:])

    @property
    def part_size(self) -> int:
        """Images in a part, whole batches; fewer with patches, so that a part fits into memory."""
        return max(1, PART // BATCH // math.prod(self.shape[:-1])) * BATCH

    @property
    def partial(self) -> Path:
        """The folder for all temporary files, removed at the end."""
        return self.target.with_name(f"{self.target.name}.partial")

    def check_folder(self) -> None:
        """Raises ValueError if the folder for temporary files is the user's."""
        files = self.partial.glob("*") if self.partial.is_dir() else [self.partial]
        if others := [path for path in files if path.exists() and not OURS.fullmatch(path.name)]:
            raise ValueError(
                f"{min(others)} is not a file of an unfinished `cl embed`; rename it, or choose another --to"
            )

    @cached_property
    def folder(self) -> Path:
        """The folder for the listing and the finished parts, named after a hash of their inputs.

        So a process on another machine that outlives its killed run cannot write into the next run's folder.
        """
        return self.partial / (self.partial / "identity").read_text()

    @property
    def listing(self) -> ImageNames:
        return ImageNames(self.inputs, self.folder, suffixes_for(self.encoder.transform))

    @property
    def parts(self) -> range:
        return range(-(-len(self.listing) // self.part_size))

    def images(self, part: int) -> range:
        """The positions of a part's images in the listing."""
        return range(part * self.part_size, min((part + 1) * self.part_size, len(self.listing)))

    def path(self, part: int) -> Path:
        """The file of a finished part."""
        return self.folder / f"part-{part:06d}.safetensors"

    @cached_property
    def notes(self) -> dict[str, str]:
        """The encoder's hash, its transform, the shape of features, and the folder that names start from."""
        place = {"shape": json.dumps(self.shape), "folder": str(root_of(self.inputs).absolute())}
        return notes_of(self.encoder) | place

    def begin(self) -> Counter[str]:
        """List the images and remove parts of other listings, in one process; returns what is left out."""
        listing = ImageNames(self.inputs, self.partial / "listing", suffixes_for(self.encoder.transform))
        try:
            listed, left_out = listing.write()
            if not len(listing):
                others = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
                raise ValueError(
                    f"no images in {', '.join(map(str, self.inputs))}, found {others or 'no files at all'}; "
                    "give images, a folder, a list or a table of images"
                )
        except (ValueError, OSError):
            if not (self.partial / "identity").exists():  # else there are parts of an earlier run
                clear(self.partial)
            raise
        inputs = f"{listed} {self.notes} {self.part_size} {reads_heic()}"
        identity = hashlib.sha256(inputs.encode()).hexdigest()
        for path in self.partial.iterdir():
            if path.is_dir() and path not in (listing.folder, self.partial / identity):
                shutil.rmtree(path)
        (self.partial / identity).mkdir(exist_ok=True)
        for path in listing.folder.iterdir():
            os.replace(path, self.partial / identity / path.name)
        (self.partial / "identity").write_text(identity)
        return left_out


def compute(job: EmbeddingJob, machine: Machine, report: Callable[..., None]) -> None:
    """Write the unfinished parts of this process, r, r + W, ..., and `report` the images that are done."""
    unfinished = []
    for part in job.parts[rank() :: ranks()]:
        if job.path(part).is_file():
            report(len(job.images(part)), kept=True)
        else:
            unfinished.append(part)
    encoded = _encoded(job, unfinished, machine)
    for part in unfinished:
        images = job.images(part)
        features, reasons = list[Tensor](), list[str]()
        for batch, of_batch in islice(encoded, len(images[::BATCH])):
            features.append(batch)
            reasons += of_batch
            report(len(of_batch))
        _save(job, part, torch.cat(features).cpu(), reasons)


@torch.no_grad()
def _encoded(job: EmbeddingJob, parts: list[int], machine: Machine) -> Iterator[tuple[Tensor, list[str]]]:
    """For each batch: features (N, *shape) on the device, and for each image why it is unreadable, or ""."""
    starts = [start for part in parts for start in job.images(part)[::BATCH]]
    count, transform, root = len(job.listing), job.encoder.transform, root_of(job.inputs)

    def fill(batch: int, rows: slice, arrays: list[np.ndarray]) -> None:
        names = job.listing.names(starts[batch] + rows.start, starts[batch] + rows.stop)
        for name, pixels, unreadable in zip(names, *arrays, strict=True):
            pixels[:] = unreadable[:] = 0
            try:
                pixels[:] = transform.pixels(root / name)
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in UNREACHABLE:
                    raise
                text = np.frombuffer(reason(error.__cause__ or error).encode()[:REASON], np.uint8)
                unreadable[: len(text)] = text

    encode = partial(dense_features, job.encoder.network) if job.patches else job.encoder
    arrays = [transform.array(transform.crop), ring.Array((REASON,), np.uint8)]
    workers = machine.workers if len(starts) * BATCH > FEW else 0
    batches = ring.filled(
        fill, range(len(starts)), lambda batch: min(BATCH, count - starts[batch]), arrays, workers
    )
    for pixels, reasons in batches:
        images = to_device(torch.from_numpy(pixels).permute(0, 3, 1, 2), machine.device)
        features = encode(job.encoder.match_weights(transform.normalise(images)))
        yield features.float(), [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in reasons]


def _save(job: EmbeddingJob, part: int, features: Tensor, reasons: list[str]) -> None:
    images = job.images(part)
    names = job.listing.names(images.start, images.stop)
    skipped = {name: reason for name, reason in zip(names, reasons, strict=True) if reason}
    for name, row_is_finite in zip(names, features.isfinite().flatten(1).all(1).tolist(), strict=True):
        if not row_is_finite and name not in skipped:
            raise ValueError(not_finite(str(root_of(job.inputs) / name)))
    readable = torch.tensor([not reason for reason in reasons])
    save_tensors({"features": features[readable]}, job.path(part), {"skipped": json.dumps(skipped)})


def merge(job: EmbeddingJob) -> tuple[int, Counter[str]]:
    """Merge all parts into the target and a table of the unreadable images, and remove the parts.

    The numbers of images with features, and of unreadable ones by reason.
    """
    embedded, unreadable = 0, dict[str, str]()
    merged = job.partial / "merged"  # not in the listing's folder, whose file names may coincide
    merged.mkdir(exist_ok=True)
    form = feature_files.FORMATS[job.target.suffix]
    file = form(merged / job.target.name, job.shape, job.notes | job.origin)
    table = merged / f"{job.target.name}.skipped.csv"
    with closing(file):
        for part in job.parts:
            tensors, metadata = load_tensors(job.path(part))
            images, skipped = job.images(part), json.loads(metadata["skipped"])
            names = [name for name in job.listing.names(images.start, images.stop) if name not in skipped]
            if names:
                file.append(names, tensors["features"].numpy())
            embedded += len(names)
            unreadable |= skipped
    write_csv(table, ["name", "reason"], unreadable.items())
    if not embedded:
        clear(job.partial)  # otherwise the next run would reuse these parts
        first = next(iter(unreadable.values()))
        raise ValueError(f"none of the images can be read: {first}")
    for path in (table, *file.paths):
        with path.open("r+b") as finished:
            os.fsync(finished.fileno())
        os.replace(path, os.path.realpath(job.target.parent / path.name))
    clear(job.partial)
    return embedded, Counter(unreadable.values())
