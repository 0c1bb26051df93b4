"""Image files of every mode and format, from a folder of raw images to the pixels that training reads."""

import subprocess
import sys

import numpy as np
import pillow_heif
import pytest
from PIL import Image as Picture

from cl.data.reader import Reader
from cl.shards import images
from tests.support.pictures import COLOUR, file_of
from tests.support.project import ROOT
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


@pytest.mark.parametrize("encode", ["copy", "raw"])
@pytest.mark.parametrize("suffix", ["avif", "heic"])
def test_photographs_of_phones_are_read_upright(tmp_path, suffix, encode) -> None:
    """In lossy formats; the left half of the photograph is red and, turned by EXIF orientation 6, its top."""
    pillow_heif.register_heif_opener()
    halves = Picture.new("RGB", (80, 60), (200, 0, 0))
    halves.paste((0, 0, 200), (40, 0, 80, 60))
    exif = Picture.Exif()
    exif[images.ORIENTATION] = 6
    content = file_of(halves, "AVIF" if suffix == "avif" else "HEIF", quality=95, exif=exif.tobytes())
    found = pixels_by_key(stored(tmp_path, {f"a.{suffix}": content}, upright=True, encode=encode))["a"]
    expected = np.zeros((80, 60, 3), int)
    expected[:40, :, 0] = expected[40:, :, 2] = 200
    inside = [*range(37), *range(43, 80)]  # chroma is blurred across the edge
    assert np.abs(found[inside].astype(int) - expected[inside]).max() < 12


WITHOUT_HEIC = """
import sys
from pathlib import Path
sys.modules["pillow_heif"] = None
from tests.support.tiny import stored
files = {path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()}
print(stored(Path(sys.argv[2]), files).manifest.splits["train"].skipped)
"""


def test_heic_without_its_package_is_left_out(tmp_path) -> None:
    pillow_heif.register_heif_opener()
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.heic").write_bytes(file_of(COLOUR, "HEIF"))
    (files / "b.avif").write_bytes(file_of(COLOUR, "AVIF"))
    command = [sys.executable, "-c", WITHOUT_HEIC, str(files), str(tmp_path / "stored")]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert said == "{'a': 'ValueError: HEIC needs another package: run `pip install pillow-heif`'}\n"


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
