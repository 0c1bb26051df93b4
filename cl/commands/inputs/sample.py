"""A sample of the images in a folder, decoded, with the labels that folders or a table give them."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image as Picture

from cl.commands.inputs.labels import Labels, check_classes, classes
from cl.commands.inputs.listing import images_in
from cl.console.wording import counted
from cl.encoders.encoder import IMAGENET
from cl.runtime.cores import cores
from cl.runtime.files import UNREACHABLE

MOST, LEAST = 1000, 20  # images
SHORT_SIDE = 192  # pixels of a decoded image at most: crops of 96 px are taken from it


@dataclass(frozen=True)
class Sample:
    """N images that can be read, of all images in a folder; "" for no label and for no group."""

    folder: Path
    files: list[Path]
    pixels: list[np.ndarray]  # (H, W, 3) uint8 each
    sides: np.ndarray  # (N,) the short sides of the files' images, in pixels
    labels: np.ndarray
    groups: np.ndarray
    listed: dict[str, tuple[str, str]]  # the paths from the folder of all its images, with label and group
    has_splits: bool  # the classes are below train/ and val/
    is_val: np.ndarray  # (N,) whether an image is below val/
    unreadable: list[str]  # why others of the sample cannot be decoded

    def __len__(self) -> int:
        return len(self.files)


def read(folder: Path, table: Labels | None) -> Sample:
    """At most MOST images, drawn from those with a label first; without a table, folders are classes.

    Classes are below train/ and val/ if the folder has both.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; give the folder that your images are in")
    splits = [] if table else [folder / "train", folder / "val"]
    has_splits = bool(splits) and all(map(Path.is_dir, splits))
    if not (table or has_splits):
        check_classes(folder, "rename the second to val, or give a table with --labels")
    rows = []
    for given in splits if has_splits else [folder]:
        names = [name for name, _ in images_in([given], Counter())]
        known = classes(given, names, table)
        rows += [(given / name, *own) for name, own in zip(names, known, strict=True)]
    if table and not any(label for _, label, _ in rows):
        raise table.none_of(f"{counted(len(rows), 'images')} in {folder}")
    drawn = np.random.default_rng(0).permutation(len(rows)).tolist()
    chosen = sorted(drawn, key=lambda row: not rows[row][1])[:MOST]
    sample = [rows[row] for row in sorted(chosen)]
    with ThreadPoolExecutor(cores()) as pool:
        decoded = [*pool.map(_decoded, (file for file, *_ in sample))]
    unreadable = [image for image in decoded if isinstance(image, str)]
    readable = [
        (*row, *image) for row, image in zip(sample, decoded, strict=True) if not isinstance(image, str)
    ]
    if len(readable) < LEAST:
        remedy = unreadable[0] if unreadable else "use an encoder as it is: `cl embed`"
        raise ValueError(
            f"{folder} has {counted(len(readable), 'images')} that can be read, of {len(sample)}, expected "
            f"{LEAST} or more to measure anything; {remedy}"
        )
    files, labels, groups, pixels, sides = zip(*readable, strict=True)
    return Sample(
        folder,
        [*files],
        [*pixels],
        np.array(sides),
        np.array(labels),
        np.array(groups),
        {str(file.relative_to(folder)): (label, group) for file, label, group in rows},
        has_splits,
        np.array([has_splits and file.is_relative_to(splits[1]) for file in files]),
        unreadable,
    )


def _decoded(file: Path) -> tuple[np.ndarray, int] | str:
    """The image with a short side of at most SHORT_SIDE, and the file's; or why it cannot be decoded."""
    try:
        pixels = IMAGENET.decoded(file)
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in UNREACHABLE:
            raise
        return str(error)
    side = min(pixels.shape[:2])
    height, width = (max(1, round(min(1, SHORT_SIDE / side) * length)) for length in pixels.shape[:2])
    return np.asarray(Picture.fromarray(pixels).resize((width, height), Picture.Resampling.BICUBIC)), side
