"""embed: the features of a folder of images, beside their names."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline import command, launch, locations

if TYPE_CHECKING:
    from cl.console.progress import Progress
    from cl.exchange.embedding import Work
    from cl.runtime.machine import Machine

SUFFIXES = (".parquet", ".npy")
REASONS = 5  # why images cannot be read: the most frequent ones are printed


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
@command.entry_point
@launch.on_all_devices
def main(folder: Path, to: Path, file: str, prefix: str | None) -> None:
    """Write the features of all images below FOLDER, in the order of their names.

    The same command continues after a kill. Images that cannot be read are listed in <TO>.skipped.csv.
    Uses all visible GPUs, or CL_PROCESSES processes.
    """
    if to.suffix not in SUFFIXES or to.is_dir():
        raise ValueError(f"--to {to} must be a file that ends in {' or '.join(SUFFIXES)}")
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; give the folder that contains the images")
    import cl
    from cl.exchange import embedding
    from cl.runtime import machine

    here = machine.find("fp32", deterministic=True)  # a part must not depend on when it is computed
    work = embedding.Work(folder, cl.load(file, device=here.device, prefix=prefix), to)
    progress = command.progress("embed")
    if not command.is_main_process():
        _wait_for_all()
        _compute(work, here, progress)
        _wait_for_all()
        return
    with embedding.exclusive(work):
        for reason, count in work.begin().items():
            progress.say(f"left out {count} files: {reason}")
        _wait_for_all()
        _compute(work, here, progress)
        _wait_for_all()
        embedded, reasons = embedding.merge(work)
    for reason, count in reasons.most_common(REASONS):
        progress.say(f"left out {count} images that cannot be read: {reason}")
    progress.say(f"{to}: {embedded} images, {work.encoder.width} features each")


def _compute(work: "Work", here: "Machine", progress: "Progress") -> None:
    """This process's share of the images."""
    from cl.exchange import embedding
    from cl.runtime.distributed import rank, ranks

    share = sum(len(work.images(part)) for part in work.parts[rank() :: ranks()])
    with progress.count(share, "images" if ranks() == 1 else "images of this process") as report:
        embedding.compute(work, here, report)


def _wait_for_all() -> None:
    import torch.distributed as dist

    from cl.runtime.distributed import ranks

    if ranks() > 1:
        dist.barrier()


if __name__ == "__main__":
    main()
