"""Image files of every mode and format, from a folder of raw images to the pixels that training reads."""

import numpy as np
import pillow_heif
import pytest
from PIL import Image as Picture

from cl.data.reader import Reader
from cl.images import decoding
from tests.support.pictures import COLOUR, file_of
from tests.support.tiny import pixels_by_key, stored

RGB = np.asarray(COLOUR)
BLUE = Picture.new("RGB", COLOUR.size, (0, 0, 200))


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
    exif[decoding.ORIENTATION] = 6
    content = file_of(halves, "AVIF" if suffix == "avif" else "HEIF", quality=95, exif=exif.tobytes())
    found = pixels_by_key(stored(tmp_path, {f"a.{suffix}": content}, upright=True, encode=encode))["a"]
    expected = np.zeros((80, 60, 3), int)
    expected[:40, :, 0] = expected[40:, :, 2] = 200
    inside = [*range(37), *range(43, 80)]  # chroma is blurred across the edge
    assert np.abs(found[inside].astype(int) - expected[inside]).max() < 12


def test_names_keep_their_letters(tmp_path) -> None:
    names = ["日本/はと", "é", "e\N{COMBINING ACUTE ACCENT}", "🐦 photo"]
    stored(tmp_path, {f"{name}.png": file_of(COLOUR, "PNG") for name in names})
    found = pixels_by_key(Reader(tmp_path / "shards", "train"))
    assert set(found) == set(names)
    assert all(np.array_equal(pixels, RGB) for pixels in found.values())
