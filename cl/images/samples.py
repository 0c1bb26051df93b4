"""What Pillow would lose of a pixel: low bits of colours, further bands, opacity that is data."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np
from PIL import Image as Picture
from PIL import TiffImagePlugin

TAGS, HEADS = TiffImagePlugin, (b"II*\0", b"MM\0*", b"II+\0")
COLOUR = "RGB;16"  # the mode of pictures of 16 bits per colour; Pillow has none
COLOURS = {2: 3, 5: 4, 6: 3, 8: 3}  # by TIFF's photometric interpretation; gray and palettes have 1
MEANT = {0: ", with white as 0", 5: ", CMYK", 8: ", Lab"}  # which Pillow misreads if deep
PREMULTIPLIED = (1,)  # of TIFF's ExtraSamples
OPACITY = ((), (1,), (2,), (999,))  # of TIFF's ExtraSamples; 0 is a band without a meaning
NUMBERS = {2: " signed", 3: " floating point"}  # TIFF's SampleFormat


def tiff_tags(file: BinaryIO) -> Mapping[int, Any]:
    """The tags of a TIFF that Pillow does not open; empty for other files."""
    with suppress(Exception):  # of damaged files
        file.seek(0)
        header = file.read(8)
        if header[:4] in HEADS:
            tags = TAGS.ImageFileDirectory_v2(header + (file.read(8) if header[2] == 43 else b""))
            file.seek(tags.next)
            tags.load(file)
            return tags
    return {}


def check_tiff(tags: Mapping[int, Any], *, known: bool = True) -> None:
    """Raises ValueError if Pillow drops or misreads samples, or cannot open the file (not `known`)."""
    if not tags:
        return
    bits, samples = max(tags.get(TAGS.BITSPERSAMPLE, (1,))), tags.get(TAGS.SAMPLESPERPIXEL, 1)
    photometric, kind = tags.get(TAGS.PHOTOMETRIC_INTERPRETATION, 0), max(tags.get(TAGS.SAMPLEFORMAT, (1,)))
    extra_samples = tags.get(TAGS.EXTRASAMPLES, ())
    others = samples - COLOURS.get(photometric, 1)
    loses = others > 1 or (others == 1 and extra_samples not in OPACITY)
    loses |= bits == 8 and kind == 2
    loses |= extra_samples == PREMULTIPLIED and (bits > 8 or samples == 2)
    in_planes = samples > 1 and tags.get(TAGS.PLANAR_CONFIGURATION) == 2
    loses |= bits > 8 and (photometric in MEANT or in_planes)
    if loses or not known:
        bands = f"{samples} samples of {bits} bits" if samples > 1 else f"a sample of {bits} bits"
        meant = MEANT.get(photometric, "") + (", in planes" if in_planes else "")
        raise ValueError(
            f"a TIFF with {bands}{NUMBERS.get(kind, '')} per pixel{meant}; write gray, with 0 as "
            "black, or three bands as RGB, such as `gdal_translate -b 1 -b 2 -b 3 -co PHOTOMETRIC=RGB`"
        )


def is_deep_colour(picture: Picture.Image) -> bool:
    """Whether the file has colours of 16 bits; of a decoded picture, only TIFF still tells."""
    if tags := getattr(picture, "tag_v2", None):
        return max(tags.get(TAGS.BITSPERSAMPLE, (1,))) > 8 and tags.get(TAGS.SAMPLESPERPIXEL, 1) > 1
    for tile in getattr(picture, "tile", ())[:1]:
        raw, *rest = (tile.args,) if isinstance(tile.args, str) else tile.args or ("",)
        if picture.format == "PPM":
            return raw == "RGB" and max(rest, default=0) > 255
        return str(raw).startswith(("RGB;16", "RGBA;16", "LA;16"))
    return False


def load(picture: Picture.Image) -> np.ndarray | None:
    """Decode a picture; (H, W, 3 or 4) uint16 if its colours have 16 bits, which Pillow halves, else None.

    Raises as `cl.images.decoding.decode`.
    """
    tags = getattr(picture, "tag_v2", {})
    check_tiff(tags)
    if deep := is_deep_colour(picture):
        if (file := getattr(picture, "fp", None)) is None:
            raise ValueError("Pillow has reduced its colours from 16 bits to 8; give the path of the file")
        file.seek(0)
        content = np.frombuffer(file.read(), np.uint8)
    picture.load()  # OpenCV does not find all damage
    _check_opacity(picture)
    if picture.mode == "I" and tags.get(TAGS.SAMPLEFORMAT, (1,)) == (1,) and picture.getextrema()[0] < 0:  # type: ignore[operator]
        raise ValueError(f"gray values above {2**31 - 1}, which Pillow misreads; write floating point")
    if not deep:
        return None
    return deep_colours(content, picture.size)


def deep_colours(content: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(H, W, 3 or 4) uint16 of a file whose colours have 16 bits, and whose width and height are `size`."""
    import cv2  # late: it takes longer than the rest of this module

    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # or it prints what it cannot read
    pixels = cv2.imdecode(content, cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype != np.uint16 or pixels.shape[:2] != (size[1], size[0]):
        raise ValueError("it has 16 bits per colour in an unknown layout; convert it to 8 bits")
    return np.concatenate([pixels[..., 2::-1], pixels[..., 3:]], 2)


def _check_opacity(picture: Picture.Image) -> None:
    """Raises ValueError if opacity seems to be data: it hides all pixels, or most partly and differently."""
    if picture.getbands()[-1] != "A":  # Lab has an A too
        return
    none, *partial, _ = picture.getchannel("A").histogram()
    extrema: Any = picture.getextrema()
    if none == picture.width * picture.height and any(low < high for low, high in extrema[:-1]):
        raise ValueError("its opacity is 0 everywhere, so no pixel would be seen; save it without opacity")
    if 2 * (sum(partial) - max(partial)) > picture.width * picture.height:
        raise ValueError(
            "its last channel is called opacity, but most pixels are half transparent, as if it were data; "
            "write three bands as RGB, or draw the image onto a background"
        )
