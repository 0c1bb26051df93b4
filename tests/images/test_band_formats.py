"""Real files of bands as packages bring them, and as libraries write them: DICOM, compressed TIFF, pages."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import skimage
import tifffile

from cl.images import bands
from cl.images.band_files import load
from cl.images.contents import content_of, images_of
from cl.runtime.files import reason
from tests.support.band_files import DEPTHS, NAMES, damaged, planes, shards, tiff

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("imagecodecs")
zarr = pytest.importorskip("zarr")
DICOM = Path(pydicom.__file__).parent / "data/test_files"
SHOWN = [
    "CT_small",
    "MR_small_RLE",
    "MR_small_bigendian",
    "MR_small_padded",
    "693_J2KI",
    "J2K_pixelrep_mismatch",
]
AS_STORED = ["SC_rgb_rle_16bit", "SC_rgb_small_odd", "SC_rgb_jpeg_dcmd", "ExplVR_BigEnd", "JPEG2000"]


def ome_zarr(folder: Path, pixels: np.ndarray, version: str, axes: str = "cyx", **omero: object) -> Path:
    """As microscopes' software writes it: the image, and a smaller one; `pixels` in the order of the axes."""
    is_new = version == "0.5"
    group = zarr.open_group(folder, mode="w", zarr_format=3 if is_new else 2)
    for number in range(2):
        level = pixels[..., :: number + 1, :: number + 1]
        chunks = tuple(min(n, 16) for n in level.shape)
        shards = (
            {"shards": tuple(-(-n // c) * c for n, c in zip(level.shape, chunks, strict=True))}
            if is_new
            else {}
        )
        group.create_array(f"{number}", data=level, chunks=chunks, **shards)
    named = [{"name": axis} for axis in axes] if version > "0.3" else list(axes)
    scales: list[dict] = [{"version": version, "datasets": [{"path": "0"}, {"path": "1"}]}]
    scales[0] |= {"axes": named} if version > "0.2" else {}
    attributes = {"multiscales": scales, "omero": omero}
    group.attrs.update({"ome": attributes} if is_new else attributes)
    return folder


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


@pytest.mark.parametrize("name", [*SHOWN, *AS_STORED])
def test_dicom_files_equal_pydicoms_reading(name) -> None:
    header = pydicom.dcmread(DICOM / f"{name}.dcm")
    expected = header.pixel_array
    if name not in AS_STORED:
        expected = pydicom.pixels.apply_modality_lut(expected, header)
        shown = pydicom.pixels.apply_voi_lut(expected, header)
        if shown is not expected:
            black, white = pydicom.pixels.apply_voi_lut(np.array([-(2**31), 2**31 - 1]), header).astype(float)
            expected = (shown - black) / (white - black)
        padding = header.pixel_array == header.get("PixelPaddingValue")
        expected = np.where(padding, np.nan, expected).astype(np.float32)
    found = load((DICOM / f"{name}.dcm").read_bytes()).pixels
    assert found.shape == (header.Rows, header.Columns, header.SamplesPerPixel)
    assert np.array_equal(found.reshape(expected.shape), expected, equal_nan=found.dtype == np.float32)


@pytest.mark.parametrize(
    ("function", "formula"),
    [
        ("LINEAR", lambda x: np.clip((x - 999.5) / 499 + 0.5, 0, 1)),
        ("LINEAR_EXACT", lambda x: np.clip((x - 1000) / 500 + 0.5, 0, 1)),
        ("SIGMOID", lambda x: 1 / (1 + np.exp(-4 * (x - 1000) / 500))),
    ],
)
def test_a_window_of_dicom_follows_the_standard(function, formula) -> None:
    """PS3.3 C.11.2.1.2 and C.11.2.1.3: the first of two windows, from 0 to 1."""
    pixels = DEPTHS["uint16"][..., 0] >> 4
    window = {"WindowCenter": [1000, 1], "WindowWidth": [500, 2], "VOILUTFunction": function}
    window |= {"BitsStored": 12, "HighBit": 11}
    expected = formula(pixels.astype(np.float64))
    found = load(dicom(pixels, **window, PixelPaddingValue=int(pixels[3, 4])))
    is_padding = pixels == pixels[3, 4]
    assert found.missing is None
    assert np.array_equal(np.isnan(found.pixels[..., 0]), is_padding)
    assert np.allclose(found.pixels[~is_padding, 0], expected[~is_padding], atol=1e-6)
    white = load(dicom(pixels, **window, PhotometricInterpretation="MONOCHROME1"))
    assert np.allclose(white.pixels[..., 0], 1 - expected, atol=1e-6)
    deeper = load(dicom(pixels, **window | {"BitsStored": 16, "HighBit": 15}))
    assert np.allclose(deeper.pixels[..., 0], expected, atol=1e-6), "whatever the file's depth"


@pytest.mark.parametrize("syntax", ["ImplicitVRLittleEndian", "ExplicitVRLittleEndian"])
def test_dicom_without_a_mark_is_read(syntax) -> None:
    pixels, file = DEPTHS["uint16"][..., 0], io.BytesIO()
    header = pydicom.dcmread(io.BytesIO(dicom(pixels)))
    header.file_meta.TransferSyntaxUID = pydicom.uid.UID(getattr(pydicom.uid, syntax))
    del header.file_meta
    header.preamble = None
    little, implicit = True, syntax.startswith("Implicit")
    pydicom.dcmwrite(file, header, implicit_vr=implicit, little_endian=little, enforce_file_format=False)
    assert b"DICM" not in file.getvalue()
    assert np.array_equal(load(file.getvalue()).pixels[..., 0], pixels)


def test_units_padding_and_white_as_0_of_dicom() -> None:
    pixels = DEPTHS["uint16"][..., 0] >> 4
    pixels[2, 5] = 7
    assert load(dicom(pixels, PixelPaddingValue=7)).missing == 7
    for several in (pixels, pixels[::-1]):
        found = load(dicom(several, PixelPaddingValue=9, PixelPaddingRangeLimit=7))
        expected = np.where((several >= 7) & (several <= 9), 9, several)
        assert found.missing == 9
        assert np.array_equal(found.pixels[..., 0], expected)
    found = load(dicom(pixels, RescaleSlope="2", RescaleIntercept="-1024", PixelPaddingValue=7))
    assert np.array_equal(
        found.pixels[..., 0], np.where(pixels == 7, np.nan, pixels * 2.0 - 1024), equal_nan=True
    )
    for empty in ({}, {"RescaleIntercept": ""}):
        assert np.array_equal(load(dicom(pixels, RescaleSlope="2", **empty)).pixels[..., 0], 2 * pixels)
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
    found = load(stack.read_bytes()).pixels
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


@pytest.mark.parametrize("kind", ["DICOM", "window", "OME-Zarr", "stack"])
def test_mutated_files_give_finite_pixels_or_a_short_reason(kind, tmp_path) -> None:
    random = np.random.default_rng(0)
    small = DEPTHS["uint16"][..., :2]
    window = {"WindowCenter": 999, "WindowWidth": 99, "RescaleSlope": 2, "RescaleIntercept": 5}
    whole = [dicom(small[..., 0], **window)]
    if kind == "DICOM":
        whole = [(DICOM / f"{name}.dcm").read_bytes() for name in (SHOWN[0], SHOWN[2], *AS_STORED[1:3])]
    folders = [ome_zarr(tmp_path / f"{v}.zarr", planes(small), v) for v in ("0.4", "0.5")]
    reasons = 0
    for number in range(200):
        try:
            if kind == "OME-Zarr":
                folder = folders[number % 2]
                files = sorted(path for path in folder.rglob("*") if path.is_file())
                file = (
                    files[random.integers(len(files))]
                    if number % 3
                    else folder / (".zattrs", "zarr.json")[number % 2]
                )
                before = file.read_bytes()
                file.write_bytes(damaged(before, random))
                content = content_of(folder)
                file.write_bytes(before)
            elif kind == "stack":
                np.save(tmp_path / "a.npy", np.stack([small] * 3))
                (tmp_path / "a.npy").write_bytes(damaged((tmp_path / "a.npy").read_bytes(), random))
                content = content_of(Path(images_of(str(tmp_path / "a.npy"))[-1]))
            else:
                content = damaged(whole[number % len(whole)], random, 132)
            image = load(content)
            about = {"mean": (0,), "deviation": (1,), "levels": ((0, 1),), "dtype": str(image.pixels.dtype)}
            one = bands.Bands(names=("1",), missing=image.missing, **about)
            assert np.isfinite(bands.standardise(image.pixels[..., :1], one)).all()
        except (ValueError, OSError) as error:
            assert 0 < len(reason(error)) <= 300
            reasons += 1
    assert 10 < reasons < 190


def test_a_cut_stack_is_listed_as_one_file(tmp_path) -> None:
    """Its header may name more images than memory has room for."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((3, 9, 8, 2), np.uint8))
    assert images_of(str(path)) == [str(tmp_path / f"a[{number}].npy") for number in range(3)]
    path.write_bytes(path.read_bytes()[:-1])
    assert images_of(str(path)) == [str(path)]
    with pytest.raises(ValueError, match="expected numbers .H, W"):
        load(content_of(path))


def test_an_array_of_one_image_has_no_images_by_number(tmp_path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((9, 8, 2), np.uint8))
    with pytest.raises(FileNotFoundError, match="has no image 7"):
        content_of(tmp_path / "a[7].npy")


@pytest.mark.parametrize("package", ["pydicom", "zarr"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch) -> None:
    pixels = DEPTHS["uint8"][..., 0]
    folder = ome_zarr(tmp_path / "a.zarr", pixels, "0.4", "yx")
    content = content_of(folder) if package == "zarr" else dicom(pixels)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=f"needs another package: run `pip install -U {package}`"):
        load(content)


@pytest.mark.parametrize("version", ["0.2", "0.3", "0.4", "0.5"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_ome_zarr_is_read_at_full_resolution(version, dtype, tmp_path) -> None:
    pixels = DEPTHS[dtype]
    channels = [{"label": name} for name in NAMES]
    axes = "tczyx" if version == "0.2" else "cyx"
    stored = planes(pixels)[None, :, None] if version == "0.2" else planes(pixels)
    folder = ome_zarr(tmp_path / "a.zarr", stored, version, axes, channels=channels)
    found = load(content_of(folder))
    assert np.array_equal(found.pixels, pixels)
    assert found.names == tuple(NAMES)


def test_an_empty_zarr_image_is_no_damage(tmp_path) -> None:
    """Chunks of one value take next to no bytes."""
    blank = np.zeros((1, 2048, 2048), np.uint16)
    folder = ome_zarr(tmp_path / "a.zarr", blank, "0.4", "cyx")
    assert np.array_equal(load(content_of(folder)).pixels[..., 0], blank[0])


def test_zarr_without_one_image_is_refused(tmp_path) -> None:
    stack = ome_zarr(tmp_path / "stack.zarr", planes(DEPTHS["uint8"]), "0.4", "tyx")
    two = ome_zarr(tmp_path / "two.zarr", planes(DEPTHS["uint8"]), "0.4", "yx")
    zarr.open_group(tmp_path / "plate.zarr", mode="w")
    (tmp_path / "empty.zarr").mkdir()
    for folder, message in (
        (stack, "axes T of 5, Y of 21, X of 34, expected rows Y"),
        (tmp_path / "plate.zarr", "without `multiscales`"),
        (two, "axes Y, X of an array .5, 21, 34."),
        (tmp_path / "empty.zarr", "not an image"),
    ):
        with pytest.raises(ValueError, match=message):
            load(content_of(folder))
