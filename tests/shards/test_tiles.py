"""Large images as tiles: where they lie, what they contain, and what happens to images that cannot be cut."""

import io
import warnings
from collections import Counter
from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import Image as Picture
from PIL import ImageOps

from cl.data.reader import Reader
from cl.images.image import Image, RawImage, Splits
from tests.support.pictures import digest, file_of, photograph, png, with_orientation
from tests.support.tiny import pixels_by_key, stored, write_shards

COLOUR = photograph(130, 70)
FILE = file_of(COLOUR, "PNG")


def corners(length: int, tile: int) -> list[int]:
    """Evenly spaced from 0 to length - tile, rounded down; as many as are needed to cover the length."""
    count = int(np.ceil(length / tile))
    return np.floor(np.linspace(0, length - tile, count) + 1e-9).astype(int).tolist() if count > 1 else [0]


def expected_tiles(pixels: np.ndarray, tile: int) -> dict[str, np.ndarray]:
    height, width = pixels.shape[:2]
    return {
        f"a_{row}_{column}": pixels[y : y + tile, x : x + tile]
        for row, y in enumerate(corners(height, tile))
        for column, x in enumerate(corners(width, tile))
    }


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("encode", ["copy", "raw"])
@pytest.mark.parametrize("tile", [1000, 130, 129, 70, 65, 50, 33])
def test_tiles_cover_the_image_in_an_even_grid(tmp_path, tile, encode) -> None:
    found = pixels_by_key(stored(tmp_path, {"a.png": FILE}, tile=tile, encode=encode))
    whole = tile >= 130
    expected = {"a": np.asarray(COLOUR)} if whole else expected_tiles(np.asarray(COLOUR), tile)
    assert_equal(found, expected)
    assert len(found) == (1 if whole else int(np.ceil(130 / tile) * np.ceil(70 / tile)))


def test_a_part_of_the_tiles_is_of_many_images(tmp_path) -> None:
    """The whole part is that of all tiles; without tiles, the first images are a random sample."""
    files = {f"{number}.png": FILE for number in range(8)}
    cut = stored(tmp_path / "cut", files, tile=33)
    part = cut.evaluated(16)
    assert len({cut.keys[position][:1] for position in part}) > 4
    assert np.array_equal(part, np.unique(part)) and len(part) == 16
    assert np.array_equal(part, cut.evaluated(16))
    for reader in (cut, stored(tmp_path / "whole", files)):
        assert np.array_equal(reader.evaluated(999), np.arange(len(reader)))
    assert np.array_equal(reader.evaluated(3), np.arange(3))


@pytest.mark.parametrize(
    ("form", "orientation"),
    [*(("JPEG", number) for number in range(1, 9)), ("PNG", 6), ("WEBP", 7), ("AVIF", 5), ("TIFF", 8)],
)
def test_tiles_are_upright(tmp_path, form, orientation) -> None:
    """Each is a tile of the upright image; the numbers of its row and column are those in the file."""
    content = with_orientation(orientation, form)
    with Picture.open(io.BytesIO(content)) as picture:
        upright = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    found = pixels_by_key(stored(tmp_path, {"a.jpg": content}, tile=30, upright=True))
    ordered = [tile.tobytes() for tile in found.values()]
    sides = [corners(length, 30) for length in upright.shape[:2]]
    tiles = [
        upright[y : y + 30, x : x + 30] for y in symmetric(sides[0], 30) for x in symmetric(sides[1], 30)
    ]
    assert Counter(ordered) <= Counter(tile.tobytes() for tile in tiles)
    assert len(set(ordered)) == len(ordered) == len(sides[0]) * len(sides[1])


def symmetric(starts: list[int], tile: int) -> list[int]:
    """The same, and counted from the other end."""
    end = starts[-1] + tile
    return sorted({*starts, *(end - tile - start for start in starts)})


def test_deep_and_palette_images_are_cut(tmp_path) -> None:
    gray = np.asarray(COLOUR.convert("L"))
    deep = gray.astype(np.uint16) * 16
    bands = np.stack([deep, deep // 2, deep // 3, np.where(gray > 99, 65535, 0)], 2).astype(np.uint16)
    for name, content in {
        "16-bit": file_of(Picture.fromarray(deep), "PNG"),
        "16-bit RGBA": cv2.imencode(".png", bands)[1].tobytes(),
        "L": file_of(COLOUR.convert("L"), "PNG"),
        "P": file_of(COLOUR.quantize(9), "PNG"),
    }.items():
        files = {"a.png": content}
        whole = pixels_by_key(stored(tmp_path / name / "whole", files))["a"]
        found = pixels_by_key(stored(tmp_path / name / "tiles", files, tile=50))
        assert_equal(found, expected_tiles(whole, 50))


def test_a_tile_of_several_pages_is_of_the_first(tmp_path) -> None:
    content = file_of(COLOUR, "TIFF", save_all=True, append_images=[Picture.new("RGB", COLOUR.size)] * 3)
    reader = stored(tmp_path, {"a.tif": content}, tile=50)
    assert_equal(pixels_by_key(reader), expected_tiles(np.asarray(COLOUR), 50))
    assert reader.manifest.splits["train"].several_frames == 1


def test_tiles_have_the_label_and_the_group_of_their_image(tmp_path) -> None:
    """Without a group, the image is the group; what is not cut has none."""
    (tmp_path / "large.png").write_bytes(FILE)
    large = Image("large", tmp_path / "large.png", 1)
    listed = [large, replace(large, key="named", group="day 1"), replace(large, key="other", group="day 1")]
    listed.append(RawImage("small", tmp_path, 0, np.zeros((20, 20, 3), np.uint8)))
    listed.append(RawImage("raw", tmp_path, 0, np.zeros((20, 51, 3), np.uint8)))
    write_shards(Splits(["x", "y"], listed, listed), tmp_path / "shards", 4, tile=50)
    reader = Reader(tmp_path / "shards", "train")
    groups: dict[str, set[int]] = {}
    for key, label, group in zip(reader.keys.tolist(), reader.labels(), reader.groups, strict=True):
        name = key.decode().split("_")[0]
        groups.setdefault(name, set()).add(int(group))
        assert label == (name in ("large", "named", "other"))
    assert groups["named"] == groups["other"]
    assert groups["small"] == {-1}
    assert len(groups["large"] | groups["named"] | groups["raw"]) == 3
    assert min(groups["large"] | groups["named"] | groups["raw"]) >= 0


def test_the_tiles_of_an_image_lie_together_whatever_the_workers(tmp_path) -> None:
    files = {f"{number}.png": FILE for number in range(8)}
    for workers in (1, 3):
        stored(tmp_path / f"{workers}", files, tile=50, workers=workers)
    assert digest(tmp_path / "1/shards") == digest(tmp_path / "3/shards")
    reader = Reader(tmp_path / "1/shards", "train")
    images_in_order = [key.decode().split("_")[0] for key in reader.keys.tolist()]
    runs = [a for a, b in zip(images_in_order, [*images_in_order[1:], ""], strict=True) if a != b]
    assert len(runs) == 8
    assert runs != sorted(runs)


def test_a_damaged_image_is_left_out_once(tmp_path) -> None:
    files = {
        "a.png": FILE,
        "half.png": FILE[: len(FILE) // 2],
        "empty.png": b"",
        "huge.png": png(40_000, 40_000),
    }
    skipped = stored(tmp_path, files, tile=20).manifest.splits["train"].skipped
    assert set(skipped) == {"half", "empty", "huge"}
    assert "an image of 40000x40000 pixels is too large" in skipped["huge"]


def test_a_tile_that_would_have_the_name_of_an_image_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="would both be stored as 'a_0_1'; rename"):
        stored(tmp_path, {"a.png": FILE, "a_0_1.png": file_of(photograph(), "PNG")}, tile=69)


def test_tiles_of_shrunk_images_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="tile=512 .* shrink=256 .*; set one"):
        stored(tmp_path, {"a.png": FILE}, tile=512, shrink=256)


def test_a_huge_image_is_cut_without_a_warning_and_refused_whole(tmp_path) -> None:
    side = 1_360
    rows = (np.arange(side) // 10 % 2).astype(bool)
    checks = rows[:, None] ^ rows
    file = file_of(Picture.fromarray(checks), "PNG")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = stored(tmp_path / "tiles", {"a.png": file}, tile=600)
        found = reader.pixels(5)
        files = {"a.png": png(13_600, 13_600), "b.png": FILE}
        refused = stored(tmp_path / "refused", files).manifest.splits["train"].skipped
    row, column = (int(number) for number in reader.keys[5].decode().split("_")[1:])
    y, x = corners(side, 600)[row], corners(side, 600)[column]
    assert np.array_equal(found[..., 1] > 0, checks[y : y + 600, x : x + 600])
    assert len(reader) == 9
    assert refused["a"].endswith("(a data set is cut with dataset.tile=512, up to 1073741824)")
