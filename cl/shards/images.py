"""Image files to pixels and back; checking and reading decode in the same way."""

import io
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image as Picture
from PIL import UnidentifiedImageError

if TYPE_CHECKING:
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
MAX_PIXELS = 2 * (Picture.MAX_IMAGE_PIXELS or 89_478_485)  # above it, Pillow suspects a decompression bomb
MAX_SIDE = {"raw": 2**16 - 1, "jpeg": 65_500}  # pixels; the limits of the index and of libjpeg
ORIENTATION = 274  # the EXIF tag


def decode(content: bytes | memoryview) -> np.ndarray:
    """Decode an image file to (H, W, 3) uint8, bit-equal to Pillow.

    Plain JPEG goes through libjpeg-turbo alone; CMYK, damaged JPEG and other formats are left to Pillow.

    Raises:
        Exception: of any type Pillow chooses, if the file is damaged, too large or not an image.
    """
    if content[:2] == b"\xff\xd8":
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
            if height * width <= MAX_PIXELS and colours in ("YCbCr", "RGB", "Gray"):
                return simplejpeg.decode_jpeg(content)
        except ValueError:
            pass
    with _open(content) as picture:
        return np.asarray(_to_rgb(picture))


def _open(content: bytes | memoryview) -> Picture.Image:
    """Open a picture of a supported format without decoding its pixels."""
    try:
        picture = Picture.open(io.BytesIO(content))
    except UnidentifiedImageError:  # its message contains a memory address
        raise ValueError("not an image, or an unsupported format") from None
    if picture.format not in EXTENSIONS:
        raise ValueError(f"unsupported format {picture.format}, expected one of {', '.join(EXTENSIONS)}")
    return picture


def _to_rgb(picture: Picture.Image) -> Picture.Image:
    """Convert to 8-bit RGB; 16-bit gray is scaled, where Pillow would clip it at 255."""
    if picture.mode.startswith("I;16"):
        return Picture.fromarray((np.asarray(picture) // 256).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {picture.mode} have an unknown range")
    return picture.convert("RGB")


def turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate and flip pixels (H, W, 3) upright by the EXIF orientation, 1 to 8."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


class Encoded(NamedTuple):
    """An image as it is stored in a shard."""

    extension: str
    content: bytes  # a file with that extension
    size: tuple[int, int]  # height and width of an array of pixels; (0, 0) for image files
    orientation: int  # the EXIF orientation that readers must apply; 1 for none
    reencoded: bool
    turned: bool


def encode(content: bytes, storage: "Storage") -> Encoded:
    """Check an image file, and shrink or re-encode it if the settings say so.

    Raises:
        Exception: as `decode`.
    """
    if not content:
        raise ValueError("the file is empty")
    with _open(content) as picture:
        extension, short_side = EXTENSIONS[str(picture.format)], min(picture.size)
        orientation = _exif_orientation(picture) if storage.upright else 1
    turned = orientation > 1
    shrinks = storage.shrink is not None and short_side > storage.shrink
    if storage.encode == "copy" and not shrinks:
        if storage.verify:
            decode(content)
        return Encoded(extension, content, (0, 0), orientation, reencoded=False, turned=turned)
    pixels = np.ascontiguousarray(turn(decode(content), orientation))
    if shrinks:
        pixels = _resize(pixels, storage.shrink / short_side)  # type: ignore[operator]
    return _encode_pixels(pixels, storage, turned)


def _exif_orientation(picture: Picture.Image) -> int:
    if picture.format == "TIFF":  # Pillow applies it on reading
        return 1
    try:
        orientation = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged EXIF in an otherwise intact image
        return 1
    return orientation if orientation in range(1, 9) else 1


def _resize(pixels: np.ndarray, scale: float) -> np.ndarray:
    height, width = (max(1, round(scale * side)) for side in pixels.shape[:2])
    return np.asarray(Picture.fromarray(pixels).resize((width, height), Picture.Resampling.BICUBIC))


def _encode_pixels(pixels: np.ndarray, storage: "Storage", turned: bool) -> Encoded:
    """Encode as JPEG, or as .npy with encode=raw; the pixels are already upright."""
    kind = "raw" if storage.encode == "raw" else "jpeg"
    height, width = pixels.shape[:2]
    if max(height, width) > MAX_SIDE[kind]:
        raise ValueError(
            f"an image of {width}x{height} pixels is too large for encode={kind}; "
            f"its sides may have at most {MAX_SIDE[kind]} pixels"
        )
    file = io.BytesIO()
    if kind == "raw":
        np.save(file, pixels)
        return Encoded("npy", file.getvalue(), (height, width), 1, reencoded=True, turned=turned)
    Picture.fromarray(pixels).save(file, "JPEG", quality=storage.quality)
    return Encoded("jpg", file.getvalue(), (0, 0), 1, reencoded=True, turned=turned)
