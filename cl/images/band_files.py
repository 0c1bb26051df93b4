"""Formats whose images may have any number of bands: TIFF, NumPy arrays, DICOM, and what Pillow reads."""

import io
import logging
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from cl.images import decoding, samples
from cl.runtime.files import reason

SUFFIXES = {".npy", ".npz", ".dcm", ".dicom"}  # beside those of photographs
TIFF_HEADS = *samples.HEADS, b"MM\0+"
GDAL_METADATA = 42112  # the TIFF tag
BAND_AXES = set("CSIQ")  # of tifffile: channel, sample, and pages without a meaning
MODES = {"1", "L", "LA", "RGB", "RGBA", "I;16", "I;16B", "I", "F"}  # of Pillow, whose numbers are values
GRAY_WITH_OPACITY = 4  # the colour type of a PNG
EXACT = 2**24  # float32 holds all integers up to this
MOST_PACKED = 4096  # bytes of pixels in a byte of a file; LZW, DEFLATE and RLE reach less
MOST_BYTES = 2**32  # of an image in the index of shards


class Pixels(NamedTuple):
    """A decoded image.

    pixels: (H, W, C) uint8, uint16 or float32.
    names: of the C bands; their numbers, from 1, if the file does not name them.
    missing: the value of pixels without data.
    turned: whether the file stores it rotated.
    several_frames: whether the file has further images, which are not used.
    """

    pixels: np.ndarray
    names: tuple[str, ...] = ()
    named: bool = False
    missing: float | None = None
    turned: bool = False
    several_frames: bool = False

    def only(self, positions: Sequence[int]) -> "Pixels":
        """The bands at these positions."""
        chosen = np.ascontiguousarray(self.pixels[..., list(positions)])
        return self._replace(pixels=chosen, names=tuple(self.names[number] for number in positions))


def load(content: bytes | memoryview) -> Pixels:
    """Decode a file with all its bands; a ZIP file, also .npz, has one file per band.

    Raises:
        Exception: as `cl.images.bands.read`.
    """
    content = bytes(content)
    try:
        return _archive(content) if content[:4] == b"PK\3\4" else _file(content)
    except (ValueError, OSError, MemoryError):
        raise
    except ImportError as error:
        raise ValueError(f"this format needs another package: run `pip install {error.name}`") from None
    except Exception as error:  # such as KeyError, from what a damaged header says
        raise ValueError(f"damaged, or of an unknown kind ({reason(error)})") from error


def _file(content: bytes) -> Pixels:
    if content[128:132] == b"DICM":  # before TIFF, whose first bytes such a file may have too
        image = _dicom(content)
    elif content[:4] in TIFF_HEADS:
        image = _tiff(content)
    elif content[:6] == b"\x93NUMPY":
        image = _array(content)
    else:
        image = _picture(content)
    pixels = np.ascontiguousarray(_in_depth(image.pixels))
    count, names, missing = pixels.shape[2], image.names, image.missing
    named = len(names) == count == len(set(names)) and "" not in names
    if missing is not None:
        missing = _as_stored(missing, pixels.dtype)
    numbers = tuple(str(number) for number in range(1, count + 1))
    return image._replace(pixels=pixels, names=names if named else numbers, named=named, missing=missing)


def _as_stored(value: float, dtype: np.dtype) -> float | None:
    """A value as pixels hold it; None for NaN and infinities, which never count as data."""
    with np.errstate(over="ignore"):
        stored = float(np.float32(value)) if dtype.kind == "f" else value
    return stored if np.isfinite(stored) else None


def _in_depth(pixels: np.ndarray) -> np.ndarray:
    """To native uint8, uint16 or float32, if that holds each value."""
    dtype = pixels.dtype
    if dtype.kind == "b" or dtype.itemsize * (dtype.kind == "u") in (1, 2):
        return pixels.astype(f"u{dtype.itemsize}")
    if dtype.kind not in "iuf":
        raise ValueError(f"values of type {dtype}, expected numbers; write uint8, uint16 or float32")
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            stored = pixels.astype(np.float32)
        exact = dtype.itemsize <= 4 or np.array_equal(stored, pixels, equal_nan=True)
    else:
        stored = pixels.astype(np.float32)
        exact = pixels.min(initial=0) >= -EXACT and pixels.max(initial=0) <= EXACT
    if not exact:
        raise ValueError(f"values of type {dtype}, which 32-bit floating point would round; write float32")
    return stored


def _check_size(content: bytes, shape: Sequence[int], dtype: np.dtype) -> None:
    """Raises ValueError if (H, W, C) is empty or too large, also for the file, before pixels take memory."""
    height, width, bands = shape
    size = height * width * bands * dtype.itemsize
    if not 0 < size <= MOST_PACKED * len(content):
        raise ValueError(
            f"an image of {width}x{height} pixels and {bands} bands in {len(content)} bytes; it is damaged"
        )
    if height * width > decoding.MAX_PIXELS or size >= MOST_BYTES:
        raise ValueError(
            f"an image of {width}x{height} pixels and {bands} bands is too large, expected at most "
            f"{decoding.MAX_PIXELS} pixels and 4 GB; cut it into smaller files"
        )


def _tiff(content: bytes) -> Pixels:
    import tifffile  # late: few images need it

    logging.getLogger("tifffile").disabled = True  # or it prints what it cannot read
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        if not file.series:
            raise ValueError("a TIFF without an image")
        series = file.series[0]
        page = series.keyframe
        _check_colours(page)
        if any(part is None for part in series.pages):
            raise ValueError("the pixels are in other files; write each image into one OME-TIFF")
        axes = [(axis, n) for axis, n in zip(series.axes, series.shape, strict=True) if n > 1 or axis in "YX"]
        names, shape = zip(*axes, strict=True)
        bands = [place for place, name in enumerate(names) if name in BAND_AXES]
        if [name for name in names if name not in BAND_AXES] != ["Y", "X"] or len(bands) > 1:
            raise ValueError(
                f"axes {axes}, expected rows Y, columns X and bands; write each plane into a file"
            )
        place = bands[0] if bands else len(shape)
        count = shape[place] if bands else 1
        _check_size(content, [*shape[:place], *shape[place + 1 :], count], np.dtype(series.dtype))
        pixels = series.asarray(maxworkers=1).reshape(shape)
        pixels = np.moveaxis(pixels, place, -1) if bands else pixels[..., None]
        orientation = page.tags.valueof(decoding.ORIENTATION, 1)
        others = [other.keyframe for other in file.series[1:]]
        return Pixels(
            decoding.turn(pixels, orientation),
            _band_names(file, page),
            missing=_gdal_missing(page),
            turned=orientation in range(2, 9),
            several_frames=any(not other.is_reduced and not other.is_mask for other in others),
        )


def _check_colours(page: Any) -> None:
    """Raises ValueError unless the numbers of a TIFF's pixels are values of bands."""
    photometric = getattr(page.photometric, "name", str(page.photometric))
    decoded = photometric == "YCBCR" and getattr(page.compression, "name", "") == "JPEG"
    if photometric not in ("MINISBLACK", "RGB") and not decoded:
        raise ValueError(f"a TIFF of colours {photometric}; write values of bands, with 0 as black, or RGB")


def _band_names(file: Any, page: Any) -> tuple[str, ...]:
    """The names in the metadata of GDAL or OME, if they are there."""
    with suppress(ElementTree.ParseError, AttributeError, ValueError, TypeError):
        if metadata := page.tags.valueof(GDAL_METADATA):
            items = ElementTree.fromstring(metadata).iter("Item")
            named = [item for item in items if item.get("name") == "DESCRIPTION"]
            return tuple(
                item.text or "" for item in sorted(named, key=lambda item: int(item.get("sample", 0)))
            )
        if file.ome_metadata:
            pixels = ElementTree.fromstring(file.ome_metadata).find(".//{*}Pixels")
            return tuple(channel.get("Name", "") for channel in pixels.iterfind("{*}Channel"))  # type: ignore[union-attr]
    return ()


def _gdal_missing(page: Any) -> float | None:
    with suppress(TypeError, ValueError):
        return float(str(page.tags.valueof(decoding.NO_DATA)).strip("\0 "))
    return None


def _array(content: bytes) -> Pixels:
    """(H, W), (H, W, C) or (C, H, W): the shorter of the first and the last axis has the bands."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = header(file)
    if dtype.hasobject or len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] == shape[2]):
        raise ValueError(
            f"an array {shape} of {dtype}, expected numbers (H, W), or (H, W, C) or (C, H, W) with fewer "
            "bands than rows and columns"
        )
    rows = (*shape, 1) if len(shape) == 2 else shape
    is_planar = rows[0] < rows[2]
    _check_size(content, [*rows[1:], rows[0]] if is_planar else rows, dtype)
    pixels = np.frombuffer(content, dtype, int(np.prod(rows)), file.tell())
    pixels = pixels.reshape(rows, order="F" if is_fortran else "C")
    return Pixels(np.moveaxis(pixels, 0, -1) if is_planar else pixels)


def _dicom(content: bytes) -> Pixels:
    """With the file's rescaling to units such as Hounsfield's, if it has one; black is low."""
    import pydicom  # optional, and few images need it

    warnings.filterwarnings("ignore", module="pydicom")  # of headers against the standard
    header = pydicom.dcmread(io.BytesIO(content))
    if "PhotometricInterpretation" not in header:
        raise ValueError("a DICOM file without an image")
    colours, frames = str(header.PhotometricInterpretation), int(header.get("NumberOfFrames") or 1)
    if frames > 1 or colours.startswith("PALETTE"):
        raise ValueError(
            f"a DICOM file of {frames} frames, {colours}; write one image of gray or RGB per file"
        )
    _check_size(content, [header.Rows, header.Columns, header.SamplesPerPixel], np.dtype(np.uint32))
    pixels = pydicom.pixels.pixel_array(header)
    values, padding = [pixels], header.get("PixelPaddingValue")
    if isinstance(padding, int) and np.iinfo(pixels.dtype).min <= padding <= np.iinfo(pixels.dtype).max:
        values.append(np.array(padding, pixels.dtype))
    slope, intercept = (
        float(header.get(f"Rescale{name}") or n) for name, n in (("Slope", 1), ("Intercept", 0))
    )
    if (slope, intercept) != (1, 0):
        values = [(each * slope + intercept).astype(np.float32) for each in values]
    elif colours == "MONOCHROME1":
        flipped = -1 if pixels.dtype.kind == "i" else 2**header.BitsStored - 1
        values = [each ^ np.array(flipped, each.dtype) for each in values]
    pixels, *missing = values
    return Pixels(
        pixels.reshape(*pixels.shape[:2], -1), missing=next((float(value) for value in missing), None)
    )


def _picture(content: bytes) -> Pixels:
    """Also the opacity is a band, as in PNG files of four."""
    with decoding.opened(io.BytesIO(content)) as picture:
        if picture.mode not in MODES:
            raise ValueError(f"a picture of mode {picture.mode}; write gray or RGB")
        deep = samples.is_deep_colour(picture)
        orientation = decoding.exif_orientation(picture)
        several = decoding.has_several_frames(picture)
        picture.load()
        pixels = np.asarray(picture)
        if deep:
            colours = samples.deep_colours(np.frombuffer(content, np.uint8), picture.size)
            has_gray = picture.format == "PNG" and content[25] == GRAY_WITH_OPACITY
            pixels = colours[..., [0, 3]] if has_gray else colours
        elif picture.mode == "I":  # of PNG and PGM, which have 16 bits at most
            pixels = pixels.astype(np.uint16)
    turned = decoding.turn(pixels.reshape(*pixels.shape[:2], -1), orientation)
    return Pixels(turned, turned=orientation > 1, several_frames=several)


def _archive(content: bytes) -> Pixels:
    try:
        files = _members(content)
    except zipfile.BadZipFile:  # its message has the damaged bytes
        raise ValueError("a damaged archive") from None
    images = [_file(file) for file in files.values()]
    shapes = {image.pixels.shape for image in images}
    if len(shapes) != 1 or shapes.pop()[2] != 1:
        found = ", ".join(f"{name} {image.pixels.shape}" for name, image in zip(files, images, strict=True))
        raise ValueError(f"the bands are {found}, expected files (H, W, 1) of one size")
    missing = {image.missing for image in images if image.missing is not None}
    if len(missing) > 1:
        raise ValueError(f"bands whose pixels without data are {sorted(missing)}; write one value for all")
    return Pixels(
        np.concatenate([image.pixels for image in images], 2),
        tuple(files),
        named=True,
        missing=missing.pop() if missing else None,
        turned=any(image.turned for image in images),
        several_frames=any(image.several_frames for image in images),
    )


def _members(content: bytes) -> dict[str, bytes]:
    """The files of an archive by name, without NumPy's suffix."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
