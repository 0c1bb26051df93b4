"""Gray images of 16 bits, 32 bits and float: `prepare` measures black and white, the reader applies them."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from benchmarks.memory import growth
from cl.images import decoding
from cl.images.image import UNLABELLED, Image
from cl.shards import levels
from cl.shards.survey import Team
from cl.sources import Storage
from tests.support.pictures import file_of, photograph
from tests.support.tiny import STORAGE, pixels_by_key, stored

GRAY = np.asarray(photograph(60, 40).convert("L")).astype(np.float64)  # 0 to 255


def deep(values: np.ndarray, dtype: str, form: str = "TIFF") -> bytes:
    return file_of(Picture.fromarray(values.astype(dtype)), form)


def expected(pixels: np.ndarray, all_pixels: np.ndarray, percentiles: tuple[float, float]) -> np.ndarray:
    """Linear between the percentiles, clipped, in three equal channels."""
    low, high = np.percentile(all_pixels[np.isfinite(all_pixels)].astype(np.float64), percentiles)
    scaled = np.clip(
        (np.nan_to_num(pixels.astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf) - low)
        / (high - low),
        0,
        1,
    )
    return np.repeat(np.round(255 * scaled).astype(np.uint8)[..., None], 3, axis=-1)


KINDS = {
    "12 bits in 16": ("PNG", "uint16", 4095 / 255),
    "16 bits": ("PNG", "uint16", 257),
    "16 bits, big-endian": ("TIFF", ">u2", 257),
    "32-bit integers": ("TIFF", "int32", 8_000_000),
    "float": ("TIFF", "float32", 0.001),
    "16-bit PGM": ("PPM", "uint16", 257),
}


@pytest.mark.parametrize("encode", ["copy", "raw"])
@pytest.mark.parametrize(("form", "dtype", "scale"), KINDS.values(), ids=KINDS)
def test_deep_images_use_the_whole_range_of_gray(tmp_path, form, dtype, scale, encode) -> None:
    suffix = {"PNG": "png", "TIFF": "tif", "PPM": "pgm"}[form]
    values = {f"{number}": (GRAY * scale * (1 - number / 10)).astype(dtype) for number in range(6)}
    files = {f"{name}.{suffix}": file_of(Picture.fromarray(array), form) for name, array in values.items()}
    found = pixels_by_key(stored(tmp_path, files, encode=encode))
    whole = np.concatenate([array.ravel() for array in values.values()])
    for name, array in values.items():
        assert np.array_equal(found[name], expected(array, whole, STORAGE["percentiles"]))
    assert (min(image.min() for image in found.values()), found["0"].max()) == (0, 255)


def test_nan_and_infinity_do_not_count_and_are_clipped(tmp_path) -> None:
    values = (GRAY / 255).astype(np.float32)
    values[0, :3] = np.nan, np.inf, -np.inf
    files = {"a.tif": file_of(Picture.fromarray(values), "TIFF")}
    found = pixels_by_key(stored(tmp_path, files, percentiles=(5, 95)))["a"]
    assert np.array_equal(found, expected(values, values, (5, 95)))
    assert found[0, :3, 0].tolist() == [0, 255, 0]


@pytest.mark.parametrize(
    ("value", "tagged", "share", "tile"),
    [
        (-9999, False, 0.3, None),
        (-9999, False, 0.002, 32),
        (3.4028235e38, False, 0.002, None),
        (-1e-3, True, 0.3, 32),
        (0.5, True, 0.3, None),
    ],
)
def test_pixels_without_data_do_not_set_the_levels(value, tagged, share, tile, tmp_path) -> None:
    """Named by GDAL's tag, wherever the value lies, or far from all others."""
    files, valid = {}, {}
    for number in range(4):
        pixels = (GRAY / 255 * (1 - number / 10)).astype(np.float32)
        missing = np.random.default_rng(number).random(pixels.shape) < share
        valid[f"{number}"] = pixels[~missing & (pixels != np.float32(value))]
        pixels[missing] = value
        tags = {"tiffinfo": {decoding.NO_DATA: f"{value}"}} if tagged else {}
        files[f"{number}.tif"] = file_of(Picture.fromarray(pixels), "TIFF", **tags)
    reader = stored(tmp_path, files, tile=tile)
    everything = np.concatenate([*valid.values()]).astype(np.float64)
    assert reader.manifest.levels["F"] == pytest.approx(np.percentile(everything, STORAGE["percentiles"]))
    found = pixels_by_key(reader)
    if not tile:
        with Picture.open(io.BytesIO(files["0.tif"])) as picture:
            assert (found["0"][np.asarray(picture) == np.float32(value)] == (255 if value > 1 else 0)).all()
    assert "flat" not in (tmp_path / "shards/manifest.json").read_text()


def test_the_transparent_value_of_deep_gray_is_no_data(tmp_path) -> None:
    values = (GRAY * 16).astype(np.uint16) + 100
    values[:9] = 0
    reader = stored(tmp_path, {"a.png": file_of(Picture.fromarray(values), "PNG", transparency=0)})
    assert reader.manifest.levels["I;16"] == pytest.approx(np.percentile(values[9:], STORAGE["percentiles"]))


def test_masks_and_saturated_pixels_keep_their_levels(tmp_path) -> None:
    """Few different values are no measurement; and one brightest pixel is no marker."""
    mask = np.where(GRAY > 128, 1000, 0)
    assert stored(tmp_path / "mask", {"a.tif": deep(mask, "int32")}).manifest.levels == {"I": (0, 1000)}
    lamp = GRAY.copy()
    lamp[3, 3] = 4000
    reader = stored(tmp_path / "lamp", {"a.tif": deep(lamp, "int32")}, percentiles=(0, 100))
    assert reader.manifest.levels["I"][1] == 4000
    saturated = GRAY * 50
    saturated[3, :9] = 65535
    files = {"a.png": deep(saturated, "uint16", "PNG")}
    assert stored(tmp_path / "16 bits", files, percentiles=(0, 100)).manifest.levels["I;16"][1] == 65535


def test_images_that_end_up_without_contrast_are_counted(tmp_path) -> None:
    dark = np.zeros(GRAY.shape)
    files = {"a.png": deep(GRAY * 257, "uint16", "PNG"), "b.png": deep(dark, "uint16", "PNG")}
    files["eight bits.png"] = file_of(Picture.new("L", (9, 9)), "PNG")
    for encode in ("copy", "raw"):
        reader = stored(tmp_path / encode, files, encode=encode)
        assert reader.manifest.splits["train"].flat == 1
        assert len(reader) == 3


def test_constant_images_are_black_and_brighter_ones_white(tmp_path) -> None:
    constant, val = np.full((4, 5), 7.0), np.full((4, 5), 8.0)
    reader = stored(tmp_path, {"a.tif": deep(constant, "float32")}, {"b.tif": deep(val, "float32")})
    assert reader.manifest.levels == {"F": (7, 7)}
    assert pixels_by_key(reader)["a"].max() == 0
    assert type(reader)(tmp_path / "shards", "val").pixels(0).min() == 255


def test_a_mode_without_a_training_image_is_left_out(tmp_path) -> None:
    files = {"8 bits.png": file_of(photograph(), "PNG"), "16 bits.png": deep(GRAY, "uint16", "PNG")}
    reader = stored(tmp_path, files, {"a.jpg": file_of(photograph()), "float.tif": deep(GRAY, "float32")})
    reason = reader.manifest.splits["val"].skipped["float"]
    assert reason.startswith("ValueError: floating-point gray without known black and white levels")
    assert (list(reader.manifest.levels), reader.manifest.splits["train"].skipped) == (["I;16"], {})


def test_the_sampled_images_do_not_depend_on_their_order(tmp_path) -> None:
    values = np.arange(levels.IMAGES + 100)
    listed = []
    for value in values:
        path = Path(tmp_path / f"{value}.tif")
        path.write_bytes(deep(np.full((1, 1), value), "float32"))
        listed.append(Image(path.stem, path, UNLABELLED))
    storage = Storage(shard_images=1, **{**STORAGE, "percentiles": (0, 50)})
    measured = levels.measure(listed, storage, Team(1))
    assert measured == levels.measure(listed[::-1], storage, Team(3))
    assert measured["F"][1] == pytest.approx(values.mean(), rel=0.1)


def test_deep_images_are_sampled_among_themselves(tmp_path) -> None:
    """Not among the images whose suffix may be that of a deep one; each mode on its own."""
    (tmp_path / "flat.png").write_bytes(file_of(Picture.new("L", (1, 1)), "PNG"))
    listed = [Image(f"{number}", tmp_path / "flat.png", UNLABELLED) for number in range(2 * levels.IMAGES)]
    values = {"I;16": ("uint16", [10, 700, 3000]), "F": ("float32", [0.25, 0.5, 8.0])}
    for mode, (dtype, pixels) in values.items():
        for pixel in pixels:
            path = tmp_path / f"{mode} {pixel}.tif"
            path.write_bytes(deep(np.full((1, 1), pixel), dtype))
            listed.append(Image(path.stem, path, UNLABELLED))
    storage = Storage(shard_images=1, **{**STORAGE, "percentiles": (0, 100)})
    assert levels.measure(listed, storage, Team(2)) == {"I;16": (10, 3000), "F": (0.25, 8)}


def test_only_deep_images_are_read_beyond_their_header(tmp_path) -> None:
    """Files of 1 GB; each pass says how many images it has."""
    for number in range(4):
        path = tmp_path / f"{number}.png"
        path.write_bytes(file_of(photograph(), "PNG"))
        os.truncate(path, 2**30)
    (tmp_path / "deep.tif").write_bytes(deep(GRAY, "uint16"))
    listed = [Image(path.stem, path, UNLABELLED) for path in sorted(tmp_path.iterdir())]
    passes = {}

    @contextmanager
    def count(total: int, unit: str) -> Iterator:
        done: list[int] = []
        yield done.append
        passes[unit] = (total, sum(done))

    assert growth(lambda: levels.measure(listed, Storage(shard_images=1, **STORAGE), Team(2, count))) < 2**26
    assert passes == {"headers": (5, 5), "images of mode I;16 to sample": (1, 1)}


def test_percentiles_outside_the_range_are_refused(tmp_path) -> None:
    files = {"a.png": deep(np.arange(64).reshape(8, 8), "uint16")}
    for percentiles in ((1, 101), (99, 1), (-1, 50)):
        with pytest.raises(ValueError, match=r"must be (in the range \[0, 100\]|an ascending pair)"):
            stored(tmp_path, files, percentiles=percentiles)
