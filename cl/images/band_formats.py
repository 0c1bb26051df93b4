"""Formats of microscopes, satellites and scanners: TIFF, OME-Zarr and DICOM."""

import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from cl.images import decoding

GDAL_METADATA = 42112  # the TIFF tag
ROWS_AND_COLUMNS = ["Y", "X"]
BAND_AXES = set("CSIQ")  # of tifffile: channel, sample, and pages without a meaning
MOST_PACKED = 4096  # bytes of pixels in a byte of a file; LZW, DEFLATE and RLE reach less
MOST_BYTES = 2**32  # of an image in the index of shards
MOST_CHUNKS = 10**5  # of an array; a damaged header may name billions


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


def check_size(content_bytes: int, shape: Sequence[int], dtype: np.dtype) -> None:
    """Raises ValueError if (H, W, C) is empty, too large, or implausible for a file of this size."""
    height, width, bands = shape
    size = height * width * bands * dtype.itemsize
    if not 0 < size <= MOST_PACKED * content_bytes:
        raise ValueError(
            f"an image of {width}x{height} pixels and {bands} bands in {content_bytes} bytes; it is damaged"
        )
    if height * width > decoding.MAX_PIXELS or size >= MOST_BYTES:
        raise ValueError(
            f"an image of {width}x{height} pixels and {bands} bands is too large, expected at most "
            f"{decoding.MAX_PIXELS} pixels and 4 GB; cut it into smaller files"
        )


def _bands_last(
    content_bytes: int, axes: Sequence[str], array: Any, read: Callable[[], np.ndarray]
) -> np.ndarray:
    """(H, W, C) of an array with rows Y, columns X and at most one axis of bands; others are refused."""
    sizes = [
        (axis, n) for axis, n in zip(axes, array.shape, strict=True) if n > 1 or axis in ROWS_AND_COLUMNS
    ]
    names = [axis for axis, _ in sizes]
    bands = [place for place, name in enumerate(names) if name in BAND_AXES]
    if [name for name in names if name not in BAND_AXES] != ROWS_AND_COLUMNS or len(bands) > 1:
        raise ValueError(
            f"axes {', '.join(f'{axis} of {n}' for axis, n in sizes)}, expected rows Y, columns X and bands; "
            "save its planes as a .npy of shape (N, Y, X, C)"
        )
    shape = [n for _, n in sizes]
    place = bands[0] if bands else 2
    count = shape.pop(place) if bands else 1
    check_size(content_bytes, [*shape, count], np.dtype(array.dtype))
    shape.insert(place, count)
    return np.moveaxis(read().reshape(shape), place, -1)


def tiff(content: bytes) -> Pixels:
    """Names of bands and the value of pixels without data come from the metadata of GDAL or OME."""
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
        pixels = _bands_last(len(content), series.axes, series, lambda: series.asarray(maxworkers=1))
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


def ome_zarr(files: Mapping[str, bytes]) -> Pixels:
    """The image of a group, of files by their paths in it, at full resolution, with its channels' names."""
    import zarr  # optional
    from zarr.buffer import cpu
    from zarr.storage import MemoryStore

    store = MemoryStore({path: cpu.Buffer.from_bytes(each) for path, each in files.items()}, read_only=True)
    group = zarr.open_group(store, mode="r")
    described: Any = group.attrs.get("ome", group.attrs)  # from version 0.5 on, or before
    if "multiscales" not in described:
        raise ValueError("a Zarr group without `multiscales`; give the image's own folder inside it")
    image = described["multiscales"][0]
    array: Any = group[image["datasets"][0]["path"]]
    if array.nchunks > MOST_CHUNKS:
        raise ValueError(f"an array of {array.nchunks} chunks, expected at most {MOST_CHUNKS}")
    named = [axis["name"] if isinstance(axis, dict) else axis for axis in image.get("axes", "tczyx")]
    axes = [name.upper() for name in named]
    if len(axes) != array.ndim:
        raise ValueError(f"axes {', '.join(axes)} of an array {array.shape}; give each axis a name")
    pixels = _bands_last(MOST_BYTES, axes, array, lambda: array[:])  # absent chunks take no bytes
    channels = (described.get("omero") or {}).get("channels") or ()
    return Pixels(pixels, tuple(str(channel.get("label", "")) for channel in channels))


def is_dicom(content: bytes) -> bool:
    """Whether a file has DICOM's mark; old files begin with a tag of group 2 or 8 instead."""
    return content[128:132] == b"DICM" or (content[:2] in (b"\2\0", b"\x08\0") and content[3:4] == b"\0")


def dicom(content: bytes) -> Pixels:
    """From 0 to 1 in the file's window, else in its units, as Hounsfield's, else as stored; black is low.

    Units of MONOCHROME1 stay as they are.
    """
    import pydicom  # optional, and few images need it

    warnings.filterwarnings("ignore", module="pydicom")  # of headers against the standard
    header = pydicom.dcmread(io.BytesIO(content), force=True)  # also without the mark
    if "PhotometricInterpretation" not in header:
        raise ValueError("a DICOM file without an image")
    colours, frames = str(header.PhotometricInterpretation), int(header.get("NumberOfFrames") or 1)
    if frames > 1 or colours.startswith("PALETTE"):
        raise ValueError(
            f"a DICOM file of {frames} frames, {colours}; write one image of gray or RGB per file"
        )
    check_size(len(content), [header.Rows, header.Columns, header.SamplesPerPixel], np.dtype(np.uint32))
    if "TransferSyntaxUID" not in header.file_meta:
        implicit, little = header.original_encoding
        syntaxes = pydicom.uid.ExplicitVRBigEndian, pydicom.uid.ExplicitVRLittleEndian
        usual = pydicom.uid.ImplicitVRLittleEndian if implicit else syntaxes[bool(little)]
        header.file_meta.TransferSyntaxUID = usual
    stored = pydicom.pixels.pixel_array(header)
    pixels, missing = _shown(stored, header, colours), None
    ends = [np.array(end).astype(stored.dtype) for end in _padding_ends(header)]
    if ends and (padding := (stored >= min(ends)) & (stored <= max(ends))).any():
        if pixels.dtype == np.float32:
            pixels[padding] = np.nan
        else:
            value = _shown(ends[0], header, colours)
            pixels, missing = np.where(padding, value, pixels), float(value)
    return Pixels(pixels.reshape(*pixels.shape[:2], -1), missing=missing)


def _padding_ends(header: Any) -> list[int]:
    """The first and last of the stored values that mark pixels outside the image; empty if none does."""
    values = [header.get(name) for name in ("PixelPaddingValue", "PixelPaddingRangeLimit")]
    return [value for value in values if isinstance(value, int)] if isinstance(values[0], int) else []


def _shown(stored: np.ndarray, header: Any, colours: str) -> np.ndarray:
    """float32 from 0 to 1 by a window, or in units; else the stored integers, with 0 as black."""
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    for name, default in (("RescaleSlope", 1), ("RescaleIntercept", 0), ("VOILUTFunction", "LINEAR")):
        setattr(header, name, header.get(name) or default)  # one may be empty or missing
    in_units = stored
    if "ModalityLUTSequence" in header or (header.RescaleSlope, header.RescaleIntercept) != (1, 0):
        in_units = apply_modality_lut(stored, header)
    shown = apply_voi_lut(in_units, header) if colours.startswith("MONOCHROME") else in_units
    if shown is not in_units:
        low, high = apply_voi_lut(np.array([-(2**31), 2**31 - 1]), header).astype(float)
        shown = ((shown - low) / (high - low)).astype(np.float32)
        return 1 - shown if colours == "MONOCHROME1" else shown
    if in_units is not stored:
        return in_units.astype(np.float32)
    if colours == "MONOCHROME1":
        return stored ^ np.array(-1 if stored.dtype.kind == "i" else 2**header.BitsStored - 1, stored.dtype)
    return stored
