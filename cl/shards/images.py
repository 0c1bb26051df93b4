"""Image files to pixels, the same way when they are checked and when they are read."""

import io
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import Image as Picture
from PIL import UnidentifiedImageError

from cl.sources import Storage

EXTENSIONS = {
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "BMP": "bmp",
    "WEBP": "webp",
    "PPM": "ppm",
    "TIFF": "tif",
}
LARGEST = 2 * (Picture.MAX_IMAGE_PIXELS or 89_478_485)  # pixels; above it Pillow takes a file for an attack
LONGEST_SIDE = {"raw": 2**16 - 1, "jpeg": 65_500}  # pixels, of the index and of libjpeg
ORIENTATION = 274  # the tag of EXIF


def decode(content: bytes | memoryview) -> np.ndarray:
    """The pixels of an image file, (H, W, 3) uint8, bit-equal to Pillow's.

    Plain JPEG goes through libjpeg-turbo alone; CMYK, what that finds damaged, and other formats are Pillow's to read or
    to refuse.

    Raises:
        Exception: of whatever type Pillow chooses, as the file is damaged, too large, or no image.
    """
    if content[:2] == b"\xff\xd8":
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
            if height * width <= LARGEST and colours in ("YCbCr", "RGB", "Gray"):
                return simplejpeg.decode_jpeg(content)
        except ValueError:
            pass
    with _opened(content) as picture:
        return np.asarray(rgb(picture))


def _opened(content: bytes | memoryview) -> Picture.Image:
    """A picture of a known format, whose pixels are not looked at yet."""
    try:
        picture = Picture.open(io.BytesIO(content))
    except UnidentifiedImageError:
        raise ValueError(
            "it is no image, or of an unknown format"
        ) from None  # Pillow names an address in memory
    if picture.format not in EXTENSIONS:
        raise ValueError(f"the format {picture.format} is none of {', '.join(EXTENSIONS)}")
    return picture


def rgb(picture: Picture.Image) -> Picture.Image:
    """Any picture in 8-bit RGB; 16-bit gray is scaled, where Pillow would cut it off at 255.

    Raises:
        ValueError: the pixels are floats or 32-bit integers, whose range nothing tells.
    """
    if picture.mode.startswith("I;16"):
        return Picture.fromarray((np.asarray(picture) // 256).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {picture.mode} have no known range")
    return picture.convert("RGB")


def turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels (H, W, 3) as EXIF's orientation, 1 to 8, says that they are meant to be looked at."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


class Stored(NamedTuple):
    """An image as it goes into a shard."""

    extension: str
    content: bytes  # a file with that extension
    size: tuple[int, int]  # height and width of an array of pixels, (0, 0) of any other file
    orientation: int  # EXIF's, 1 where nothing remains to be turned
    reencoded: bool
    turned: bool


def store(content: bytes, storage: Storage) -> Stored:
    """An image file checked, and shrunk or encoded anew if that is asked for.

    Raises:
        Exception: as `decode`.
    """
    if not content:
        raise ValueError("the file is empty")
    with _opened(content) as picture:
        extension, short_side = EXTENSIONS[str(picture.format)], min(picture.size)
        orientation = _orientation(picture) if storage.upright else 1
    shrinks = storage.shrink is not None and short_side > storage.shrink
    if storage.encode == "copy" and not shrinks:
        if storage.verify:
            decode(content)
        return Stored(extension, content, (0, 0), orientation, reencoded=False, turned=orientation > 1)
    pixels = np.ascontiguousarray(turn(decode(content), orientation))
    if shrinks:
        scale = storage.shrink / short_side  # type: ignore[operator]
        size = [max(1, round(scale * side)) for side in pixels.shape[1::-1]]
        pixels = np.asarray(Picture.fromarray(pixels).resize(tuple(size), Picture.Resampling.BICUBIC))
    kind = "raw" if storage.encode == "raw" else "jpeg"
    if max(pixels.shape) > LONGEST_SIDE[kind]:
        raise ValueError(
            f"an image of {pixels.shape[1]}x{pixels.shape[0]} pixels is too large for encode={kind}"
        )
    file = io.BytesIO()
    if kind == "raw":
        np.save(file, pixels)
        return Stored("npy", file.getvalue(), pixels.shape[:2], 1, reencoded=True, turned=orientation > 1)
    Picture.fromarray(pixels).save(file, "JPEG", quality=storage.quality)
    return Stored("jpg", file.getvalue(), (0, 0), 1, reencoded=True, turned=orientation > 1)


def _orientation(picture: Picture.Image) -> int:
    if picture.format == "TIFF":  # Pillow turns these as it reads them
        return 1
    try:
        found = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF in an image that is whole otherwise
        return 1
    return found if found in range(1, 9) else 1
