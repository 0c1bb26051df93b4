"""Real files of bands as packages bring them, and as libraries write them: DICOM, compressed TIFF, pages."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import skimage
import tifffile

from cl.images import bands
from cl.images.band_files import load
from tests.support.band_files import DEPTHS, planes, shards, tiff

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("imagecodecs")
DICOM = Path(pydicom.__file__).parent / "data/test_files"
IN_UNITS = [
    "CT_small",
    "MR_small",
    "MR_small_RLE",
    "MR_small_bigendian",
    "MR_small_implicit",
    "rtdose_1frame",
]
AS_STORED = ["examples_overlay", "SC_rgb_rle_16bit", "SC_rgb_small_odd", "SC_rgb_jpeg_dcmd", "ExplVR_BigEnd"]


def dicom(pixels: np.ndarray, **changes: object) -> bytes:
    """A file as a scanner writes it, with changes to its header."""
    header = pydicom.Dataset()
    header.file_meta = pydicom.dataset.FileMetaDataset()
    header.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    header.Rows, header.Columns = pixels.shape[:2]
    header.SamplesPerPixel, header.PhotometricInterpretation = 1, "MONOCHROME2"
    header.BitsAllocated = header.BitsStored = 8 * pixels.dtype.itemsize
    header.HighBit = header.BitsStored - 1
    header.PixelRepresentation = int(pixels.dtype.kind == "i")
    header.PixelData = pixels.tobytes()
    header["PixelData"].VR = "OW"
    for name, value in changes.items():
        setattr(header, name, value)
    file = io.BytesIO()
    header.SOPClassUID, header.SOPInstanceUID = pydicom.uid.SecondaryCaptureImageStorage, "1.2.3"
    pydicom.dcmwrite(file, header, enforce_file_format=True)
    return file.getvalue()


@pytest.mark.parametrize("name", [*IN_UNITS, *AS_STORED])
def test_dicom_files_equal_pydicoms_reading(name) -> None:
    header = pydicom.dcmread(DICOM / f"{name}.dcm")
    expected = (
        pydicom.pixels.apply_rescale(header.pixel_array, header) if name in IN_UNITS else header.pixel_array
    )
    found = bands.read((DICOM / f"{name}.dcm").read_bytes())
    assert found.shape == (header.Rows, header.Columns, header.SamplesPerPixel)
    assert np.array_equal(found.reshape(expected.shape), expected)


def test_units_padding_and_white_as_0_of_dicom() -> None:
    pixels = DEPTHS["uint16"][..., 0] >> 4
    found = load(dicom(pixels, RescaleSlope="2", RescaleIntercept="-1024", PixelPaddingValue=7))
    assert np.array_equal(found.pixels[..., 0], pixels * 2.0 - 1024)
    assert found.missing == 7 * 2 - 1024
    white = load(dicom(pixels, PhotometricInterpretation="MONOCHROME1", BitsStored=12, HighBit=11))
    assert np.array_equal(white.pixels[..., 0], 4095 - pixels)
    signed = load(dicom(pixels.astype(np.int16) - 9, PhotometricInterpretation="MONOCHROME1"))
    assert np.array_equal(signed.pixels[..., 0], 8 - pixels.astype(np.int16))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ((DICOM / "rtplan.dcm").read_bytes(), "a DICOM file without an image"),
        ((DICOM / "rtdose.dcm").read_bytes(), "15 frames, .* one image"),
        ((DICOM / "examples_palette.dcm").read_bytes(), "PALETTE"),
        ((DICOM / "MR_truncated.dcm").read_bytes(), "less than expected"),
        (dicom(DEPTHS["uint16"][..., 0], Rows=60000, Columns=60000), "bytes; it is damaged"),
    ],
)
def test_dicom_without_one_image_of_values_is_refused(content, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        load(content)


@pytest.mark.parametrize("compression", ["lzw", "zstd", "packbits", "lzma", "jpegxl", "jpeg2000"])
def test_compressed_tiff_is_read_without_loss(compression, tmp_path) -> None:
    pixels = np.repeat(DEPTHS["uint16"][..., :3], 4, axis=1)
    content = tiff(pixels, "minisblack", planarconfig="contig", compression=compression)
    reader, _ = shards(tmp_path, {"a.tif": content})
    assert np.array_equal(reader.pixels(0), pixels)


def test_pages_of_a_stack_are_bands() -> None:
    stack = Path(skimage.__file__).parent / "data/multipage.tif"
    found = bands.read(stack.read_bytes())
    assert np.array_equal(found, np.moveaxis(tifffile.imread(stack), 0, -1))


def test_an_ome_tiff_whose_pixels_are_in_another_file_is_refused() -> None:
    file = io.BytesIO()
    tifffile.imwrite(file, planes(DEPTHS["uint16"][..., :2]), ome=True, metadata={"axes": "CYX"})
    described = tifffile.TiffFile(io.BytesIO(file.getvalue())).ome_metadata
    assert described is not None
    other = '<TiffData FirstC="1" PlaneCount="1"><UUID FileName="b.ome.tif">urn:uuid:1</UUID></TiffData>'
    split = re.sub("<TiffData.*?/>", f'<TiffData IFD="0" PlaneCount="1"/>{other}', described)
    alone = io.BytesIO()
    tifffile.imwrite(alone, DEPTHS["uint16"][..., 0], description=split, metadata=None)
    with pytest.raises(ValueError, match="in other files"):
        load(alone.getvalue())


def test_mutated_dicom_files_give_pixels_or_a_reason() -> None:
    random = np.random.default_rng(0)
    names = [*IN_UNITS, *AS_STORED[1:3]]
    whole = {f"{name}.dcm": (DICOM / f"{name}.dcm").read_bytes() for name in names}
    reasons = 0
    for number in range(300):
        damaged = bytearray([*whole.values()][number % len(whole)])
        most = len(damaged) if number % 2 else 2000
        for place in random.integers(132, min(most, len(damaged)), random.integers(1, 20)):
            damaged[place] = random.integers(0, 256)
        try:
            assert bands.read(bytes(damaged)).ndim == 3
        except (ValueError, OSError) as error:
            assert str(error)
            reasons += 1
    assert 20 < reasons < 280
