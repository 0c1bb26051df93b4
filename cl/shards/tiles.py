"""Tiles of large images: each is a separate sample with the label and split of its image."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import cast

import numpy as np

from cl.images import decoding, samples
from cl.images.image import Image
from cl.shards import encoding
from cl.shards.survey import Team, read_fact, survey
from cl.sources import Storage


@dataclass(frozen=True)
class Tile(Image):
    """A part of the image `whole`; box: left, upper, right and lower edge in the pixels of the file."""

    whole: Image
    box: tuple[int, int, int, int]


def whole_of(image: Image) -> Image:
    """The image of a tile; an uncut image itself."""
    return image.whole if isinstance(image, Tile) else image


def begins(image: Image) -> bool:
    """Whether this is an uncut image or the first tile of one."""
    return not isinstance(image, Tile) or image.box[:2] == (0, 0)


def images_begun(listed: list[Image]) -> list[Image]:
    """The images whose first sample is in this part of a list."""
    return [whole_of(image) for image in listed if begins(image)]


def cut(listed: Sequence[Image], side: int, team: Team) -> list[Image]:
    """Replace each image larger than `side` by its tiles, row by row.

    The tiles of an image without a group form a group. Boxes refer to the file, before its orientation is
    applied. An image that cannot be opened stays, and packing reports it.
    """
    size_of = partial(
        read_fact, fact=attrgetter("size"), otherwise=(0, 0), max_pixels=decoding.MAX_TILED_PIXELS
    )
    sizes = survey(listed, size_of, "image sizes", team)
    return [tile for image, size in zip(listed, sizes, strict=True) for tile in _samples(image, *size, side)]


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
            positive=image.positive,
            within=image.within,
        )
        for row, upper in enumerate(_starts(height, side))
        for column, left in enumerate(_starts(width, side))
    ]


def _starts(length: int, side: int) -> list[int]:
    """The starts of ceil(length / side) evenly spaced tiles that cover `length` from edge to edge."""
    last = -(-length // side) - 1
    return [number * (length - side) // last for number in range(last + 1)] if last else [0]


def encode(
    content: bytes, cut_tiles: list[Image], storage: Storage, levels: decoding.Levels
) -> Iterator[encoding.Encoded]:
    """Decode an image once and encode its tiles, losslessly if `encode` is copy. Raises as `decode`."""
    kind = "png" if storage.encode == "copy" else storage.encode
    with decoding.opened(io.BytesIO(content), decoding.MAX_TILED_PIXELS) as picture:
        deep = decoding.deep_mode(picture) is not None
        colour = samples.load(picture)  # first, as in `decoding.from_picture`
        orientation = decoding.exif_orientation(picture) if storage.upright else 1
        several, missing = decoding.has_several_frames(picture), decoding.no_data(picture)
        for tile in cast(list[Tile], cut_tiles):
            left, upper, right, lower = tile.box
            deep_part = None if colour is None else colour[upper:lower, left:right]
            part = decoding.eight_bits(picture.crop(tile.box), levels, missing, deep_part)
            pixels = np.asarray(part if kind == "png" else part.convert("RGB"))
            upright = np.ascontiguousarray(decoding.turn(pixels, orientation))
            yield encoding.encode_pixels(upright, kind, storage.quality)._replace(
                turned=orientation > 1,
                several_frames=several and begins(tile),
                flat=deep and encoding.is_flat(pixels),
            )
