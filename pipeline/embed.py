"""embed: the features of a folder of images, beside their names."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import click
import torch.distributed as dist

import cl
from cl.console.progress import Progress
from cl.console.reasons import lines
from cl.console.wording import counted
from cl.hub import embedding
from cl.hub.encoder import Encoder
from cl.hub.feature_files import FORMATS
from cl.networks.backbones import check_size
from cl.runtime import machine
from cl.runtime.base_config import check_crop
from cl.runtime.distributed import rank, ranks
from cl.runtime.files import exclusive
from pipeline.support import command, locations

FOREVER = timedelta(days=365)  # a slow process may take any time; `launch` detects a dead one


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path),
    help="The file to write: .parquet, or .npy with the names in a .txt beside it.",
)
@click.option(
    "--backbone",
    "file",
    default=str(locations.BACKBONE),
    show_default=True,
    help="Any encoder that pipeline.evaluate reads.",
)
@click.option(
    "--prefix", help="Which encoder to use if the file contains several, for example module.encoder_q."
)
@click.option(
    "--resize",
    type=click.IntRange(min=1),
    help="Short side in pixels, for an encoder whose file records no transform.  [default: 256]",
)
@click.option(
    "--crop",
    type=click.IntRange(min=1),
    help="Side in pixels of the centre crop, given together with --resize.  [default: 224]",
)
@command.entry_point
@command.on_all_devices
def main(folder: Path, to: Path, file: str, prefix: str | None, resize: int | None, crop: int | None) -> None:
    """Write the features of all images below FOLDER, in the order of their names.

    The same command continues after a kill. Images that cannot be read are listed in <TO>.skipped.csv.
    Uses all visible GPUs, or CL_PROCESSES processes.
    """
    _check(folder, to, resize, crop)
    here = machine.find("fp32", deterministic=True)  # a continued run must give the same features
    progress = command.progress("embed")
    encoder = cl.load(file, device=here.device, prefix=prefix)
    _choose_size(encoder, resize, crop, progress)
    check_size(file, encoder.network, encoder.transform.crop, "--crop")
    job = embedding.EmbeddingJob([folder], encoder, to)
    is_main, wait_for_all = command.is_main_process(), _barrier()
    with exclusive(job.partial, to) if is_main else nullcontext():
        if is_main:
            for line in lines(job.begin()):
                progress.say(line)
        wait_for_all()
        share = sum(len(job.images(part)) for part in job.parts[rank() :: ranks()])
        with progress.count(share, "images" if ranks() == 1 else "images of this process") as report:
            embedding.compute(job, here, report)
        wait_for_all()
        if is_main:
            embedded, reasons = embedding.merge(job)
            for line in lines(reasons, "images that cannot be read"):
                progress.say(line)
            progress.say(f"{to}: {counted(embedded, 'images')}, {encoder.width} features each")
        wait_for_all()


def _check(folder: Path, to: Path, resize: int | None, crop: int | None) -> None:
    names = to.with_suffix(".txt")
    if to.suffix not in FORMATS or to.is_dir():
        raise ValueError(f"--to {to} must be a file that ends in {' or '.join(FORMATS)}")
    is_continued = Path(f"{to}.partial").exists()
    if to.suffix == ".npy" and names.exists() and not to.exists() and not is_continued:
        raise ValueError(f"--to {to} would overwrite {names}, which pipeline.embed did not write; rename one")
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; give the folder that contains the images")
    if (resize is None) != (crop is None):
        raise ValueError(f"found --resize {resize} with --crop {crop}; give both or neither")
    if resize and crop:
        check_crop(resize, crop)


def _choose_size(encoder: Encoder, resize: int | None, crop: int | None, progress: Progress) -> None:
    """Set the image size if the encoder's file does not record it."""
    if resize and encoder.records_size:
        recorded = f"resize={encoder.transform.resize} and crop={encoder.transform.crop}"
        raise ValueError(f"the encoder's file records {recorded}; leave out --resize and --crop")
    if resize:
        encoder.transform = encoder.transform.model_copy(update={"resize": resize, "crop": crop})
    stem = getattr(encoder.network, "conv1", None)
    if not resize and not encoder.records_size and stem is not None and stem.stride == (1, 1):
        progress.say(
            f"the encoder was built for small images, but gets crops of {encoder.transform.crop} px, because "
            "its file records no size: give the size of its training, for example --resize 32 --crop 32"
        )


def _barrier() -> Callable[[], None]:
    """A function that waits for all processes, without a deadline: listing and merging may take hours."""
    if ranks() == 1:
        return lambda: None
    return partial(dist.barrier, dist.new_group(backend="gloo", timeout=FOREVER))


if __name__ == "__main__":
    main()
