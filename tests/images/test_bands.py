"""Images of any bands and depth: shards hold the bits of NumPy's arrays, or the reason to leave one out."""

import io
import re

import numpy as np
import pytest
import tifffile
from PIL import Image as Picture

from cl.images import bands, decoding
from cl.images.band_files import load
from tests.support.band_files import (
    DEPTHS,
    GDAL,
    GRAY,
    HEIGHT,
    NAMED,
    NAMES,
    RNG,
    WIDTH,
    WRITERS,
    damaged,
    png,
    saved,
    shards,
    tagged,
    tiff,
)
from tests.support.tiny import pixels_by_key


@pytest.mark.parametrize("dtype", DEPTHS)
@pytest.mark.parametrize("kind", WRITERS)
def test_shards_hold_the_bits_of_every_format(kind, dtype, tmp_path) -> None:
    pixels = DEPTHS[dtype]
    images = {f"{number}.{kind}": WRITERS[kind](pixels[number:]) for number in range(3)}
    reader, manifest = shards(tmp_path, images)
    assert manifest.bands is not None
    found = pixels_by_key(reader)
    for number in range(3):
        stored = found[f"{number}.{kind}".rpartition(".")[0].replace(".", "_")]
        assert (stored.dtype, stored.shape) == (pixels.dtype, pixels[number:].shape)
        assert stored.tobytes() == pixels[number:].tobytes()
    assert manifest.bands.names == tuple(NAMES if kind in NAMED else "12345")


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("colours", [0, 4, 2, 6])  # gray, gray with opacity, RGB, RGBA
def test_opacity_is_a_band_of_png(colours, dtype) -> None:
    pixels = DEPTHS[dtype][..., : {0: 1, 4: 2, 2: 3, 6: 4}[colours]]
    found = load(png(pixels, colours)).pixels
    assert (found.dtype, found.tolist()) == (dtype, pixels.tolist())


def test_pgm_has_its_depth() -> None:
    pixels = DEPTHS["uint16"][..., :1]
    found = load(b"P5\n%d %d\n65535\n" % (WIDTH, HEIGHT) + pixels.astype(">u2").tobytes()).pixels
    assert (found.dtype, found.tolist()) == (np.uint16, pixels.tolist())


@pytest.mark.parametrize("kind", ["gdal.tif", "jpg"])
def test_images_are_stored_upright(kind) -> None:
    pixels = DEPTHS["uint8"][..., :3]
    if kind == "jpg":
        exif = Picture.Exif()
        exif[decoding.ORIENTATION] = 6
        file = io.BytesIO()
        Picture.fromarray(pixels).save(file, "JPEG", exif=exif)
        expected = decoding.decode(file.getvalue(), upright=True)
    else:
        file = io.BytesIO()
        tag = (decoding.ORIENTATION, "H", 1, 6, False)
        tifffile.imwrite(file, pixels, planarconfig="contig", extratags=[tag], metadata=None, **GRAY)
        expected = np.rot90(pixels, -1)
    found = load(file.getvalue())
    assert found.turned
    assert np.array_equal(found.pixels, expected)


@pytest.mark.parametrize(
    ("channels", "positions"),
    [([4, 1], [3, 0]), (["red", "blue"], [3, 1]), (["near infrared"], [4]), ("all", range(5))],
)
def test_bands_are_chosen_in_the_given_order(channels, positions, tmp_path) -> None:
    pixels = DEPTHS["uint16"]
    reader, manifest = shards(tmp_path, {"a.tif": tagged(pixels)}, channels)
    assert np.array_equal(reader.pixels(0), pixels[..., list(positions)])
    assert manifest.bands is not None
    assert manifest.bands.names == tuple(NAMES[n] for n in positions)


EXACT = {
    "int16": np.int16([[-32768, 0], [7, 32767]]),
    "int8": np.int8([[-128, 0], [7, 127]]),
    "bool": np.array([[True, False], [False, True]]),
    "float16": np.float16([[0.1, np.nan], [65504, -np.inf]]),
    "int32": np.int32([[2**24, 0], [-(2**24), 1]]),
    "float64": np.float64([[0.5, np.nan], [np.inf, 2.0**100]]),
}
INEXACT = {
    "uint32": np.uint32([[2**24 + 1, 0]]),
    "int64": np.int64([[-(2**24) - 1, 0]]),
    "float64": np.float64([[0.1, 0]]),
    "complex64": np.complex64([[1, 1j]]),
    "text": np.array([["a", "b"]]),
}


@pytest.mark.parametrize("name", EXACT)
def test_other_types_become_one_that_holds_all_values(name) -> None:
    found = load(saved(EXACT[name])).pixels[..., 0]
    assert found.dtype == (np.uint8 if name == "bool" else np.float32)
    assert np.array_equal(found.astype(EXACT[name].dtype), EXACT[name], equal_nan=found.dtype == np.float32)


def test_at_most_64_bands_are_read_unless_some_are_chosen() -> None:
    content = saved(np.zeros((99, 99, 65), np.uint8))
    assert bands.choose(load(content), [65, 1]).pixels.shape == (99, 99, 2)
    with pytest.raises(ValueError, match="65 bands, expected at most 64"):
        bands.choose(load(content), "all")


@pytest.mark.parametrize("name", INEXACT)
def test_values_that_would_be_rounded_are_refused(name) -> None:
    with pytest.raises(ValueError, match=f"{INEXACT[name].dtype}.*write"):
        load(saved(INEXACT[name]))


WRONG = {
    "2 bands, expected 5": tiff(DEPTHS["uint16"][..., :2], "minisblack", planarconfig="contig"),
    "the bands .*expected coastal": tagged(DEPTHS["uint16"], metadata=GDAL.replace("red", "swir")),
    "7.0 for pixels without data, expected 5.0": tagged(DEPTHS["uint16"], missing=7),
    "an array .*fewer bands than rows": saved(np.zeros((7, 9, 7), np.uint8)),
    "in 141 bytes; it is damaged": saved(np.zeros((1, 1), np.uint8)).replace(
        b"(1, 1)", b"(9999999, 9999999)"
    ),
    "an array .*H, W": saved(np.zeros((2, 3, 4, 5), np.uint8)),
    "object": saved(np.array([[{}]], object)),
    "PALETTE": tiff(DEPTHS["uint8"][..., 0], "palette", colormap=np.zeros((3, 256), np.uint16)),
    "MINISWHITE": tiff(DEPTHS["uint8"][..., 0], "miniswhite"),
    "SEPARATED": tiff(DEPTHS["uint8"][..., :4], "separated"),
    "not an image": b"hello, this is text",
    "mode P": png(DEPTHS["uint8"][..., :1], 3, PLTE=bytes(768)),
}
with io.BytesIO() as file:
    tifffile.imwrite(file, np.zeros((3, 9, 8), np.uint8), imagej=True, metadata={"axes": "ZYX"})
    WRONG["axes Z of 3.*save its planes as"] = file.getvalue()
with io.BytesIO() as file:
    np.savez(file, a=np.zeros((3, 4)), b=np.zeros((4, 4)))
    WRONG["of one size"] = file.getvalue()


@pytest.mark.parametrize("reason", WRONG)
def test_an_image_that_does_not_fit_is_left_out_with_a_reason(reason, tmp_path) -> None:
    files = {f"{n}.tif": tagged(DEPTHS["uint16"] + n, missing=5) for n in range(3)} | {"wrong": WRONG[reason]}
    reader, manifest = shards(tmp_path, files)
    assert len(reader) == 3
    (skipped,) = manifest.splits["train"].skipped.values()
    assert re.search(reason, skipped), skipped
    assert "\n" not in skipped


@pytest.mark.parametrize(
    ("channels", "message"),
    [(["red", "swir"], "no band swir, found the bands coastal"), ([1, 6], "5 bands, expected at least 6")],
)
def test_a_band_that_no_image_has_is_refused(channels, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        shards(tmp_path, {"a.tif": tagged(DEPTHS["uint16"])}, channels)


def test_images_of_another_type_are_left_out_as_their_units_may_differ(tmp_path) -> None:
    deep = {f"{number}.npy": saved(DEPTHS["uint16"][number:]) for number in range(3)}
    others = {f"{name}.npy": saved(DEPTHS[name]) for name in ("uint8", "float32")}
    reader, manifest = shards(tmp_path, deep | others)
    assert len(reader) == 3
    skipped = manifest.splits["train"].skipped
    for name in ("uint8", "float32"):
        assert f"pixels of {name}, expected uint16" in skipped[name]
    assert manifest.bands == shards(tmp_path / "alone", deep)[1].bands


def test_bands_chosen_by_number_are_not_swapped(tmp_path) -> None:
    """Names that no other image has do not matter: some programs write a date or a file's name."""
    pixels = DEPTHS["uint16"]
    renamed = GDAL.replace("blue", "blue 1")
    swapped = tagged(pixels, None, GDAL.replace("blue", "x").replace("red", "blue").replace("x", "red"))
    same = {f"{number}.tif": tagged(pixels) for number in range(3)}
    reader, manifest = shards(
        tmp_path, {**same, "renamed.tif": tagged(pixels, None, renamed), "s.tif": swapped}, [2, 4]
    )
    assert len(reader) == 4
    assert "the bands red, blue, expected blue, red" in manifest.splits["train"].skipped["s"]


@pytest.mark.parametrize(("missing", "is_tagged"), [(-9999.0, True), (-9999.0, False), (float("nan"), False)])
def test_statistics_are_of_pixels_with_data(missing, is_tagged, tmp_path) -> None:
    """And equal on any number of workers; standardised images have a mean of 0 and a deviation of 1."""
    values = RNG.normal(5, [1, 2, 3], (8, HEIGHT, WIDTH, 3)).astype(np.float32)
    gaps = RNG.random((8, HEIGHT, WIDTH, 1)) < 0.1
    images = np.where(gaps, np.float32(missing), values)
    files = {f"{n}.tif": tagged(image, missing if is_tagged else None, "") for n, image in enumerate(images)}
    reader, manifest = shards(tmp_path / "one", files)
    known = values[~gaps[..., 0]].astype(np.float64)
    found = manifest.bands
    assert found is not None
    assert found == shards(tmp_path / "three", files, workers=3)[1].bands
    assert found.missing == (None if np.isnan(missing) else missing)
    assert np.allclose(found.mean, known.mean(0), atol=1e-12)
    assert np.allclose(found.deviation, known.std(0), atol=1e-12)
    assert np.allclose(found.levels, np.percentile(known, [1, 99], axis=0).T)
    stored = np.stack([reader.pixels(n) for n in range(8)])
    shown = np.stack([bands.standardise(image, found) for image in stored])
    without = ~np.isfinite(stored) | (stored == missing)
    assert (shown[without] == 0).all()
    of_data = shown[~without[..., 0]]
    assert np.allclose(of_data.mean(0), 0, atol=1e-5)
    assert np.allclose(of_data.std(0), 1, atol=1e-5)


def test_a_constant_band_and_one_without_data_have_finite_statistics(tmp_path) -> None:
    pixels = np.stack([np.full((9, 8), 7), np.full((9, 8), np.nan)], 2).astype(np.float32)
    _, manifest = shards(tmp_path, {"a.npy": saved(pixels)})
    assert manifest.bands is not None
    assert (manifest.bands.mean, manifest.bands.deviation) == ((7, 0), (1, 1))
    assert not bands.standardise(pixels, manifest.bands).any()


def test_the_largest_floats_standardise_to_finite_numbers() -> None:
    one = bands.Bands(names=("a",), dtype="float32", mean=(0,), deviation=(1e-3,), levels=((0, 1),))
    assert not bands.standardise(np.float32([[[3e38]]]), one).any()


def test_mutated_files_give_pixels_or_a_reason(tmp_path) -> None:
    """Damaged bytes, headers and ends: no hang, no other end, and finite statistics."""
    random = np.random.default_rng(0)
    small = DEPTHS["uint16"][:9, :11]
    whole = [(kind, write(small)) for kind, write in WRITERS.items()]
    files = {}
    for number in range(300):
        kind, content = whole[number % len(whole)]
        files[f"{number}/{kind}"] = damaged(content, random)
    reader, manifest = shards(tmp_path, files | {f"whole {n}.npy": saved(small) for n in range(300)})
    assert manifest.bands is not None
    skipped = manifest.splits["train"].skipped
    assert len(reader) + len(skipped) == 600
    assert 20 < len(skipped) < 300
    assert not [reason for reason in skipped.values() if "\n" in reason or len(reason) > 400]
    for position in range(len(reader)):
        assert np.isfinite(bands.standardise(reader.pixels(position), manifest.bands)).all()
