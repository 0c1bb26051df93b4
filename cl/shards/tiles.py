"""Tiles of large images: each is a sample of its own, with the label and the split of its image."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import cast

import numpy as np

from cl.shards.images import (
    MAX_TILED_PIXELS,
    Encoded,
    Levels,
    deep_mode,
    eight_bits,
    encode_pixels,
    exif_orientation,
    has_several_frames,
    is_flat,
    no_data,
    opened,
    turn,
)
from cl.shards.survey import read_fact, survey
from cl.shards.team import Team
from cl.sources import Image, Storage


@dataclass(frozen=True)
class Tile(Image):
    """A part of the image `whole`; box: left, upper, right and lower edge in the pixels of the file."""

    whole: Image
    box: tuple[int, int, int, int]

    @property
    def is_first(self) -> bool:
        """Whether it is the first tile of its image."""
        return self.box[:2] == (0, 0)


def whole_of(image: Image) -> Image:
    """The image that a tile is cut from; another image is whole."""
    return image.whole if isinstance(image, Tile) else image


def first_samples(listed: Sequence[Image]) -> np.ndarray:
    """The positions at which images begin; those in between are further tiles of one."""
    others = [i for i, image in enumerate(listed) if isinstance(image, Tile) and not image.is_first]
    return np.delete(np.arange(len(listed)), others)


def samples_by_image(listed: list[Image]) -> Iterator[list[Image]]:
    """The samples of each image in turn: its tiles, or the uncut image alone."""
    for _, samples in groupby(listed, key=lambda image: whole_of(image).key):
        yield list(samples)


def images_begun(listed: list[Image]) -> list[Image]:
    """The images that begin in a part of a list; the tiles of one may have begun in an earlier part."""
    return [whole_of(image) for image in listed if not isinstance(image, Tile) or image.is_first]


def cut(listed: Sequence[Image], side: int, team: Team) -> list[Image]:
    """Replace each image larger than `side` by its tiles, row by row.

    The tiles of an image are one group, unless the image itself belongs to one. Rows and columns count in the
    file, before its orientation is applied. An image that cannot be opened stays, to be reported when packed.
    """
    size = partial(
        read_fact, fact=lambda picture: picture.size, otherwise=(0, 0), max_pixels=MAX_TILED_PIXELS
    )
    sizes = survey(listed, size, "image sizes", team)
    return [
        sample for image, size in zip(listed, sizes, strict=True) for sample in _samples(image, *size, side)
    ]


def _samples(image: Image, width: int, height: int, side: int) -> list[Image]:
    if max(width, height) <= side:
        return [image]
    group = image.group or f"the image {image.key}"
    return [
        Tile(
            f"{image.key}_{row}_{column}",
            image.path,
            image.label,
            image,
            (left, upper, min(left + side, width), min(upper + side, height)),
            group=group,
        )
        for row, upper in enumerate(_starts(height, side))
        for column, left in enumerate(_starts(width, side))
    ]


def _starts(length: int, side: int) -> list[int]:
    """Where ceil(length / side) tiles begin that cover `length` from edge to edge, evenly spaced."""
    last = -(-length // side) - 1
    return [number * (length - side) // last for number in range(last + 1)] if last else [0]


def encode(content: bytes, cut_tiles: list[Image], storage: Storage, levels: Levels) -> Iterator[Encoded]:
    """Decode an image once and encode these tiles of it, without loss where files are copied.

    Raises:
        Exception: as `cl.shards.images.decode`.
    """
    kind = "png" if storage.encode == "copy" else storage.encode
    with opened(io.BytesIO(content), MAX_TILED_PIXELS) as picture:
        orientation = exif_orientation(picture) if storage.upright else 1
        several, missing, deep = has_several_frames(picture), no_data(picture), deep_mode(picture)
        for tile in cast(list[Tile], cut_tiles):
            part = eight_bits(picture.crop(tile.box), levels, missing)
            pixels = np.asarray(part if kind == "png" else part.convert("RGB"))
            encoded = encode_pixels(np.ascontiguousarray(turn(pixels, orientation)), kind, storage.quality)
            yield encoded._replace(
                turned=orientation > 1,
                several_frames=several and tile.is_first,
                flat=deep is not None and is_flat(pixels),
            )
