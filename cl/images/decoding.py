"""Image files to upright pixels of 8 bits; `prepare`, training and `cl embed` decode alike."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np
import simplejpeg
from PIL import Image as Picture
from PIL import UnidentifiedImageError

from cl.images import samples

EXTENSIONS = {
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "BMP": "bmp",
    "WEBP": "webp",
    "PPM": "ppm",
    "TIFF": "tif",
    "AVIF": "avif",
    "HEIF": "heic",
}
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
MAX_PIXELS = 178_956_970  # of an uncut image, twice what Pillow warns of
MAX_TILED_PIXELS = 2**30  # of an image cut into tiles: in RGB, Pillow then takes 4 GiB
Picture.MAX_IMAGE_PIXELS = None  # `opened` refuses with a remedy; Pillow would print a warning first
MAX_SIDE = {"raw": 2**16 - 1, "jpeg": 65_500, "png": 2**31 - 1}  # pixels; limits of the index and the formats
ORIENTATION = 274  # the EXIF tag
EXIF, TAKEN = 0x8769, 36867  # the tags of a camera's data, and in these of the time
NO_DATA = 42113  # GDAL's TIFF tag for the value of pixels without data
NO_HEIC = "HEIC needs another package: run `pip install pillow-heif`"
Levels = Mapping[str, tuple[float, float]]  # black and white pixel values of each deep mode
NO_LEVELS: Levels = MappingProxyType({})
DEEP = {
    "I;16": "16-bit gray",
    "I": "32-bit gray",
    "F": "floating-point gray",
    samples.COLOUR: "16-bit colour",
}


def decode(content: bytes | memoryview, *, upright: bool = False, levels: Levels = NO_LEVELS) -> np.ndarray:
    """Decode an image file to (H, W, 3) uint8, bit-equal to Pillow except for deep pixels and transparency.

    libjpeg-turbo decodes plain JPEG; Pillow decodes CMYK, damaged JPEG and other formats.

    Args:
        upright: rotate it by the EXIF orientation.

    Raises:
        Exception: of any type, if the file is damaged, too large or not an image.
    """
    pixels = plain_jpeg(content)
    if pixels is not None and not upright:
        return pixels
    with opened(io.BytesIO(content)) as picture:
        return from_picture(picture, upright=upright, levels=levels, pixels=pixels)


def plain_jpeg(content: bytes | memoryview) -> np.ndarray | None:
    """The pixels as stored; None for what Pillow decodes."""
    if content[:2] == b"\xff\xd8":
        with suppress(ValueError):
            height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
            if height * width <= MAX_PIXELS and colours in ("YCbCr", "RGB", "Gray"):
                return simplejpeg.decode_jpeg(content)
    return None


def from_picture(
    picture: Picture.Image, *, upright: bool, levels: Levels = NO_LEVELS, pixels: np.ndarray | None = None
) -> np.ndarray:
    """As `decode`, for an opened picture; `pixels` as stored, if they are known."""
    if pixels is None:  # before the orientation, for which Pillow decodes a PNG and may hide its damage
        colour = samples.load(picture)
        pixels = np.asarray(eight_bits(picture, levels, no_data(picture), colour).convert("RGB"))
    return np.ascontiguousarray(turn(pixels, exif_orientation(picture) if upright else 1))


@contextmanager
def opened(file: BinaryIO, max_pixels: int = MAX_PIXELS) -> Iterator[Picture.Image]:
    """Open a picture of a supported format; its pixels are decoded on access. Raises as `decode`."""
    head = file.read(12)
    if not head:
        raise ValueError("the file is empty")
    heic_is_missing = head[8:] in HEIC_BRANDS and not reads_heic()
    file.seek(0)
    try:
        picture = Picture.open(file)
    except UnidentifiedImageError:  # its message contains a memory address
        if heic_is_missing:
            raise ValueError(NO_HEIC) from None
        samples.check_tiff(samples.tiff_tags(file), known=False)
        raise ValueError("not an image, or an unsupported format") from None
    with picture:
        if picture.format not in EXTENSIONS:
            raise ValueError(f"unsupported format {picture.format}, expected one of {', '.join(EXTENSIONS)}")
        if picture.width * picture.height > max_pixels:
            raise ValueError(
                f"an image of {picture.width}x{picture.height} pixels is too large, expected at most "
                f"{MAX_PIXELS}; make it smaller or cut it into tiles (a data set is cut with "
                f"dataset.tile=512, up to {MAX_TILED_PIXELS})"
            )
        yield picture


@cache
def reads_heic() -> bool:
    """Whether the optional package for HEIC is installed; if so, register it with Pillow."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def deep_mode(picture: Picture.Image) -> str | None:
    """One of `DEEP`, for gray of any byte order and for colours; None for 8-bit pictures.

    Pillow forgets the depth of colours when it decodes a picture.
    """
    if samples.is_deep_colour(picture):
        return samples.COLOUR
    mode = picture.mode[:4]
    return mode if mode in DEEP else None


def eight_bits(
    picture: Picture.Image, levels: Levels, missing: float | None, colour: np.ndarray | None
) -> Picture.Image:
    """Convert to 8-bit gray or RGB, with transparent pixels on white.

    Deep pixels are scaled; Pillow would clip gray at 255 and drop the low bits of colours. Those equal to
    `missing` become black.

    Args:
        colour: (H, W, 3 or 4) of `samples.load`.
    """
    mode = deep_mode(picture) if colour is None else samples.COLOUR
    if mode is None:
        if picture.has_transparency_data:
            return _on_white(picture.convert("RGBA"))
        return picture.convert("L" if picture.mode in ("1", "L") else "RGB")
    if mode not in levels:
        raise ValueError(
            f"{DEEP[mode]} without known black and white levels, which come from training images (ready "
            "encoders have none); convert it to 8 bits"
        )
    pixels = np.asarray(picture) if colour is None else colour[..., :3]
    scaled = _scaled(pixels, *levels[mode])
    if missing is not None:
        scaled[pixels == missing] = 0
    if colour is None or colour.shape[2] == 3:
        return Picture.fromarray(scaled)
    opacity = (colour[..., 3:] / 257).round().astype(np.uint8)
    return _on_white(Picture.fromarray(np.concatenate([scaled, opacity], 2)))


def _on_white(picture: Picture.Image) -> Picture.Image:
    white = Picture.new("RGBA", picture.size, "white")
    return Picture.alpha_composite(white, picture).convert("RGB")


def no_data(picture: Picture.Image) -> float | None:
    """The value of pixels without data, if the file records one; in deep gray PNG the transparent value."""
    if picture.mode == "I;16" and picture.format == "PNG":
        return picture.info.get("transparency")
    try:
        value = float(picture.tag_v2[NO_DATA])  # type: ignore[attr-defined]
        return float(np.float32(value)) if picture.mode == "F" else value
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _scaled(pixels: np.ndarray, black: float, white: float) -> np.ndarray:
    """Map [black, white] to [0, 255] and clip; NaN becomes black. Equal levels give a step."""
    if black == white:
        return np.where(pixels > black, 255, 0).astype(np.uint8)
    if pixels.dtype == np.uint16 and pixels.size > 2**16:  # a table takes less memory
        return _scaled(np.arange(2**16, dtype=np.uint16), black, white)[pixels]
    scaled = pixels.astype(np.float64)  # exact for every mode
    scaled -= black
    scaled *= 255 / (white - black)
    scaled.clip(0, 255, out=scaled)
    return np.nan_to_num(scaled.round(out=scaled), copy=False).astype(np.uint8)


def turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate and flip pixels (H, W, ...) upright; `orientation` is the EXIF tag, 1 to 8."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def exif_orientation(picture: Picture.Image) -> int:
    """1 to 8; 1 if the tag is missing or Pillow already applies it."""
    if picture.format == "TIFF":  # Pillow applies it. pillow-heif does too, and resets the tag
        return 1
    try:
        orientation = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF in an otherwise intact image
        return 1
    return orientation if orientation in range(1, 9) else 1


def taken_at(file: Path | BinaryIO) -> float:
    """When a camera took the picture, in seconds by its own clock; NaN if the file does not say."""
    try:
        with file.open("rb") if isinstance(file, Path) else file as content, opened(content) as picture:
            taken = picture.getexif().get_ifd(EXIF)[TAKEN]
        return (datetime.strptime(taken, "%Y:%m:%d %H:%M:%S") - datetime(1970, 1, 1)).total_seconds()
    except Exception:  # no file, no image or no time; damaged EXIF in an otherwise intact image
        return float("nan")


def has_several_frames(picture: Picture.Image) -> bool:
    """Whether the file is animated or has pages. MPO's further pictures are previews of the first."""
    try:
        return picture.format != "MPO" and getattr(picture, "n_frames", 1) > 1
    except Exception:  # a later frame is damaged, the first is intact
        return False


def is_stack(file: Path) -> bool:
    """As `has_several_frames`, of a file; False if it cannot be read."""
    with suppress(Exception), file.open("rb") as content, opened(content) as picture:
        return has_several_frames(picture)
    return False
