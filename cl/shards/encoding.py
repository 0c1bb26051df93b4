"""Image files and pixels to what a shard stores."""

import io
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from PIL import Image as Picture

from cl.images.band_formats import MOST_BYTES
from cl.images.bands import Bands, read_as
from cl.images.decoding import (
    EXTENSIONS,
    MAX_SIDE,
    NO_LEVELS,
    Levels,
    deep_mode,
    exif_orientation,
    from_picture,
    has_several_frames,
    opened,
    plain_jpeg,
)

if TYPE_CHECKING:
    from cl.sources import Storage


class Encoded(NamedTuple):
    """An image as it is stored in a shard."""

    extension: str
    content: bytes  # a file with this extension
    length: int  # bytes of the file, or of a .npy array without its header
    size: tuple[int, int]  # height and width of a .npy array; (0, 0) for image files
    orientation: int  # the EXIF orientation that readers must apply; 1 for none
    reencoded: bool
    turned: bool
    several_frames: bool = False  # the file has more frames; this is the first
    flat: bool = False  # deep pixels that the levels map to a single colour


def encode(content: bytes, storage: "Storage", levels: Levels = NO_LEVELS) -> Encoded:
    """Check an image file; shrink or re-encode it as the settings say. Raises as `decoding.decode`."""
    with opened(io.BytesIO(content)) as picture:
        deep = deep_mode(picture) is not None
        extension, short_side = EXTENSIONS[str(picture.format)], min(picture.size)
        shrinks = storage.shrink is not None and short_side > storage.shrink
        copies = storage.encode == "copy" and not shrinks
        if decodes := storage.verify or not copies:
            jpeg = plain_jpeg(content)
            pixels = from_picture(picture, upright=storage.upright, levels=levels, pixels=jpeg)
        orientation = exif_orientation(picture) if storage.upright else 1
        several = has_several_frames(picture)
    flat = deep and decodes and is_flat(pixels)
    if copies:
        encoded = Encoded(
            extension, content, len(content), (0, 0), orientation, reencoded=False, turned=False
        )
    else:
        if shrinks:
            scale = storage.shrink / short_side  # type: ignore[operator]
            height, width = (max(1, round(scale * side)) for side in pixels.shape[:2])
            resized = Picture.fromarray(pixels).resize((width, height), Picture.Resampling.BICUBIC)
            pixels = np.asarray(resized)
        encoded = encode_pixels(pixels, "raw" if storage.encode == "raw" else "jpeg", storage.quality)
    return encoded._replace(turned=orientation > 1, several_frames=several, flat=flat)


def encode_bands(content: bytes, bands: Bands) -> Encoded:
    """Check an image file; store the bands of a data set without loss. Raises as `read_as`."""
    image = read_as(content, bands)
    encoded = encode_pixels(image.pixels, "raw", quality=0)
    return encoded._replace(turned=image.turned, several_frames=image.several_frames)


def is_flat(pixels: np.ndarray) -> bool:
    """Whether all pixels are equal."""
    return bool((pixels == pixels[:1, :1]).all())


def encode_pixels(pixels: np.ndarray, kind: Literal["raw", "jpeg", "png"], quality: int) -> Encoded:
    """Encode upright pixels: (H, W, 3), (H, W) gray for JPEG and PNG, any for raw (.npy). JPEG is lossy."""
    height, width = pixels.shape[:2]
    if max(height, width) > MAX_SIDE[kind]:
        raise ValueError(
            f"an image of {width}x{height} pixels is too large for encode={kind}; "
            f"its sides may have at most {MAX_SIDE[kind]} pixels"
        )
    if pixels.nbytes >= MOST_BYTES:
        raise ValueError(f"an image of {pixels.nbytes} bytes is too large, expected less than {MOST_BYTES}")
    file = io.BytesIO()
    if kind == "raw":
        np.save(file, pixels)
        extension, length, size = "npy", pixels.nbytes, (height, width)
    else:
        Picture.fromarray(pixels).save(file, kind, quality=quality)
        extension, length, size = EXTENSIONS[kind.upper()], file.tell(), (0, 0)
    return Encoded(extension, file.getvalue(), length, size, 1, reencoded=True, turned=False)
