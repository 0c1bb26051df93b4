"""Image files of every mode and format, from a folder of raw images to the pixels that training reads."""

import numpy as np
import pytest
from PIL import Image as Picture

from cl.data.reader import Reader
from tests.support.pictures import COLOUR, file_of
from tests.support.tiny import pixels_by_key, stored

RGB = np.asarray(COLOUR)
BLUE = Picture.new("RGB", COLOUR.size, (0, 0, 200))


@pytest.mark.parametrize("encode", ["copy", "raw"])
def test_cmyk_becomes_rgb(tmp_path, encode) -> None:
    """The inks subtract from white: R = (255 - C)(255 - K) / 255."""
    inks = COLOUR.convert("CMYK")
    found = pixels_by_key(stored(tmp_path, {"a.tif": file_of(inks, "TIFF")}, encode=encode))["a"]
    cmyk = 255 - np.asarray(inks).astype(float)
    assert np.abs(found - cmyk[..., :3] * cmyk[..., 3:] / 255).max() <= 1


@pytest.mark.parametrize("encode", ["copy", "raw"])
def test_a_palette_is_looked_up(tmp_path, encode) -> None:
    picture = COLOUR.quantize(16)
    found = pixels_by_key(stored(tmp_path, {"a.png": file_of(picture, "PNG")}, encode=encode))["a"]
    colours = np.array(picture.getpalette()).reshape(-1, 3)
    assert np.array_equal(found, colours[np.asarray(picture)])


@pytest.mark.parametrize("encode", ["copy", "raw"])
def test_gray_with_alpha_loses_the_alpha(tmp_path, encode) -> None:
    gray = np.asarray(COLOUR.convert("L"))
    content = file_of(Picture.fromarray(np.stack([gray, gray[::-1]], -1), "LA"), "PNG")
    found = pixels_by_key(stored(tmp_path, {"a.png": content}, encode=encode))["a"]
    assert np.array_equal(found, np.repeat(gray[..., None], 3, -1))


@pytest.mark.parametrize("encode", ["copy", "raw"])
@pytest.mark.parametrize("form", ["WEBP", "PNG", "TIFF"])
def test_the_first_of_several_frames_is_used_and_the_file_counted(tmp_path, form, encode) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    content = file_of(COLOUR, form, save_all=True, append_images=[BLUE], **options)
    files = {f"animated.{form.lower()}": content, "still.png": file_of(COLOUR, "PNG")}
    reader = stored(tmp_path, files, encode=encode)
    assert np.array_equal(pixels_by_key(reader)["animated"], RGB)
    assert reader.manifest.splits["train"].several_frames == 1


def test_the_previews_of_a_photograph_are_no_frames(tmp_path) -> None:
    content = file_of(COLOUR, "MPO", save_all=True, append_images=[BLUE])
    reader = stored(tmp_path, {"a.jpg": content})
    with Picture.open(tmp_path / "raw/train/a.jpg") as picture:
        assert picture.n_frames == 2
    assert reader.manifest.splits["train"].several_frames == 0


def test_an_empty_file_is_left_out(tmp_path) -> None:
    reader = stored(tmp_path, {"a.png": b"", "b.png": file_of(COLOUR, "PNG")})
    assert reader.manifest.splits["train"].skipped == {"a": "ValueError: the file is empty"}
    assert reader.keys.tolist() == [b"b"]


def test_names_keep_their_letters(tmp_path) -> None:
    names = ["日本/はと", "é", "e\N{COMBINING ACUTE ACCENT}", "🐦 photo"]
    stored(tmp_path, {f"{name}.png": file_of(COLOUR, "PNG") for name in names})
    found = pixels_by_key(Reader(tmp_path / "shards", "train"))
    assert set(found) == set(names)
    assert all(np.array_equal(pixels, RGB) for pixels in found.values())
