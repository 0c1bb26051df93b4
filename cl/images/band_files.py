"""Files of any number of bands: NumPy arrays, pictures, archives, and those of `cl.images.band_formats`."""

import io
import zipfile

import numpy as np

from cl.images import band_formats, decoding, samples
from cl.images.band_formats import Pixels, check_size
from cl.images.contents import ARRAY, STACKED, ZARR, header_of
from cl.runtime.files import reason

SUFFIXES = {ARRAY, ".npz", ".dcm", ".dicom", ZARR, ".ozx"}  # beside those of photographs
TIFF_HEADS = *samples.HEADS, b"MM\0+"
MODES = {"1", "L", "LA", "RGB", "RGBA", "I;16", "I;16B", "I", "F"}  # of Pillow, whose numbers are values
GRAY_WITH_OPACITY = 4  # the colour type of a PNG
EXACT = 2**24  # float32 holds all integers up to this


def load(content: bytes | memoryview) -> Pixels:
    """Decode a file with all its bands; a ZIP file, such as .npz, has one file per band, or OME-Zarr.

    Raises an exception of any type if it is damaged, too large or not an image.
    """
    content = bytes(content)
    try:
        return _archive(content) if content[:4] == b"PK\3\4" else _file(content)
    except (ValueError, OSError, MemoryError):
        raise
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise ValueError(f"this format needs another package: run `pip install -U {package}`") from None
    except Exception as error:  # such as KeyError, from what a damaged header says
        raise ValueError(f"damaged, or of an unknown kind ({reason(error)})") from error


def _file(content: bytes) -> Pixels:
    if band_formats.is_dicom(content):  # before TIFF, whose first bytes such a file may have too
        image = band_formats.dicom(content)
    elif content[:4] in TIFF_HEADS:
        image = band_formats.tiff(content)
    elif content[:6] == b"\x93NUMPY":
        image = _array(content)
    else:
        image = _picture(content)
    return _in_depth(image)


def _in_depth(image: Pixels) -> Pixels:
    """In a type of the shards, with a name for each band."""
    pixels = np.ascontiguousarray(_exactly(image.pixels))
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


def _exactly(pixels: np.ndarray) -> np.ndarray:
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


def _array(content: bytes) -> Pixels:
    """(H, W), (H, W, C) or (C, H, W): the shorter of the first and the last axis has the bands."""
    file = io.BytesIO(content)
    shape, is_fortran, dtype = header_of(file)
    rows = (*shape, 1) if len(shape) == 2 else shape
    fewest = min(shape, default=0)  # which must be the number of bands
    are_bands = len(shape) == 2 or (shape.count(fewest) == 1 and fewest in (shape[0], shape[-1]))
    if dtype.hasobject or len(rows) != 3 or not are_bands:
        several = "; an image of several is called `x[0].npy`" if len(shape) == STACKED else ""
        raise ValueError(
            f"an array {shape} of {dtype}, expected numbers (H, W), or (H, W, C) or (C, H, W) with fewer "
            f"bands than rows and columns{several}"
        )
    is_planar = rows[0] < rows[2]
    check_size(len(content), [*rows[1:], rows[0]] if is_planar else rows, dtype)
    pixels = np.frombuffer(content, dtype, int(np.prod(rows)), file.tell())
    pixels = pixels.reshape(rows, order="F" if is_fortran else "C")
    return Pixels(np.moveaxis(pixels, 0, -1) if is_planar else pixels)


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
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
        if {".zgroup", "zarr.json"} & files.keys():
            return _in_depth(band_formats.ome_zarr(files))
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
