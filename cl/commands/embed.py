"""embed: the features of images, beside their names."""

import copy
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from os import fspath
from pathlib import Path

import torch.distributed as dist

from cl.commands.defaults import ENCODER
from cl.commands.inputs import feature_files, matching
from cl.commands.inputs.feature_files import Features
from cl.commands.inputs.listing import root_of
from cl.commands.jobs import embedding
from cl.commands.jobs.embedding import EmbeddingJob
from cl.commands.paths import File, Inputs, checked, existing, target_of
from cl.console.command import is_main_process, progress
from cl.console.progress import Progress
from cl.console.wording import counted, lines
from cl.encoders.encoder import IMAGENET, Encoder, built_for, load, opened, remarks
from cl.images.decoding import is_stack
from cl.networks.backbones import check_size
from cl.runtime import machine
from cl.runtime.distributed import rank, ranks
from cl.runtime.files import exclusive
from cl.runtime.machine import Machine

FOREVER = timedelta(days=365)  # a slow process may take any time; `launch` detects a dead one


def embed(
    images: Inputs,
    *,
    encoder: File | Encoder = ENCODER,
    to: File | None = None,
    prefix: str | None = None,
    resize: int | None = None,
    crop: int | None = None,
    patches: bool = False,
) -> Features | None:
    """The features of images, in bounded memory; processes of one torch.distributed group share the work.

    A call with equal arguments continues after a kill. Images that cannot be read are left out, counted on
    the terminal, and listed in <to>.skipped.csv.

    Args:
        images: a file, a folder, a .txt list, a .csv or .parquet table, or a sequence of these. An image that
            is named twice counts once.
        encoder: a file or name that `cl.load` takes, or what it returned, which computes on its own device.
        to: the file to write: .parquet, .npy with the names in a .txt beside it, or .csv; None: return them.
        prefix: which encoder to use if the file contains several.
        resize: short side in pixels, for an encoder whose file records no transform; together with crop.
        crop: side in pixels of the centre crop.
        patches: features of places instead, (N, H', W', D), as `Encoder.patches` gives them.

    Returns:
        Features (N, D) float32 with the names of the images, if `to` is None. A name is the path from the
        folder, if one folder, list or table is given, and otherwise as given.

    Raises:
        ValueError: an input or the encoder is missing or damaged, no image can be read, another process
            writes into `to`, or features are not finite.
    """
    if to is None and ranks() > 1:
        raise ValueError(f"{ranks()} processes share the work, so the features need a file; give to=")
    with tempfile.TemporaryDirectory() if to is None else nullcontext() as folder:
        given = Path(folder or "", "features.parquet") if to is None else to
        path = target_of(given, images, encoder, suffixes=tuple(feature_files.FORMATS))
        assert path
        if patches and path.suffix == ".csv":
            raise ValueError(f"--patches does not fit .csv; choose {path.stem}.npy")
        if path.suffix == ".npy":
            names = checked(path.with_suffix(".txt"), images)
            is_continued = Path(f"{path}.partial/identity").exists()
            if names.exists() and not (path.exists() or is_continued):
                raise ValueError(
                    f"--to {path} would overwrite {names}, which cl embed did not write; rename one"
                )
        inputs = existing(images)
        with machine.settings_restored():
            shown = progress("embed")
            loaded, here = _load(encoder, prefix, resize, crop, shown)
            origin = matching.origin_of(encoder, prefix)
            job = EmbeddingJob(inputs, loaded, path, patches=patches, origin=origin)
            job.check_folder()
            each = " x ".join(str(size) for size in job.shape)
            embedded, unreadable = _run(job, here, shown)
        if to is None:
            return feature_files.read(path, patches=patches)
        rest = f"; {path}.skipped.csv lists {counted(unreadable, 'others')}" if unreadable else ""
        shown.say(f"{to}: {counted(embedded, 'images')}, {each} features each{rest}")
        return None


def _load(
    encoder: File | Encoder, prefix: str | None, resize: int | None, crop: int | None, shown: Progress
) -> tuple[Encoder, Machine]:
    """The encoder on its device, for images of this size, and the machine."""
    if untested := machine.untested_gpu():
        shown.say(untested)
    here = machine.find("fp32", deterministic=True)  # a continued run must give the same features
    if not isinstance(encoder, Encoder):
        name, loaded = fspath(encoder), load(fspath(encoder), prefix).to(here.device)
        shown.say(*remarks(loaded, name))
    elif encoder.training or prefix:
        raise ValueError("the encoder is loaded already: leave out prefix, and call encoder.eval()")
    else:
        name, loaded = "the encoder", copy.copy(opened(encoder))
        here = replace(here, device=next(encoder.parameters()).device)
    loaded.set_size(resize, crop)
    side, used = built_for(loaded.network, loaded.config), loaded.transform.crop
    if not loaded.records_size and (side < used or IMAGENET.crop == used < 0.75 * side):
        shown.say(
            f"the encoder was built for about {side} px, but gets crops of {used} px, because its file "
            f"records no size: give that of its training, such as --resize {side} --crop {side}"
        )
    check_size(name, loaded.network, loaded.transform.crop, "--crop", loaded.transform.channels)
    return loaded, here


def _run(job: EmbeddingJob, here: Machine, shown: Progress) -> tuple[int, int]:
    """List, compute, merge; the numbers of images with and without features, in the main process only."""
    is_main, wait_for_all = is_main_process(), (lambda: None)
    if ranks() > 1:  # without a deadline: listing and merging may take hours
        wait_for_all = partial(dist.barrier, dist.new_group(backend="gloo", timeout=FOREVER))
    embedded = unreadable = 0
    with exclusive(job.partial, job.target) if is_main else nullcontext():
        if is_main:
            shown.say(*lines(job.begin()))
            first = job.listing.names(0, min(len(job.listing), embedding.BATCH))
            if stacks := sum(is_stack(root_of(job.inputs) / name) for name in first):
                shown.say(
                    f"of the first {len(first)} files, {stacks} with several frames or pages: "
                    "only the first of each is used"
                )
        wait_for_all()
        share = sum(len(job.images(part)) for part in job.parts[rank() :: ranks()])
        with shown.count(share, "images" if ranks() == 1 else "images of this process") as report:
            embedding.compute(job, here, report)
        wait_for_all()
        if is_main:
            embedded, reasons = embedding.merge(job)
            shown.say(*lines(reasons, "images that cannot be read"))
            unreadable = sum(reasons.values())
        wait_for_all()
    return embedded, unreadable
