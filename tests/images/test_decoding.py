"""Image files of every kind, intact and damaged, to pixels and back."""

import io
import resource
import struct
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image as Picture
from PIL import ImageOps

from benchmarks.memory import growth
from cl.images import decoding
from cl.images.decoding import decode
from cl.images.image import RawImage
from cl.shards import encoding, tiles
from cl.sources import Storage
from tests.support.files import damaged
from tests.support.pictures import COLOUR, FILES, file_of, photograph, png, with_orientation
from tests.support.processes import start_fork
from tests.support.tiny import STORAGE

COPY = Storage(shard_images=1, **STORAGE)


def by_pillow(content: bytes) -> np.ndarray:
    """Transparent pixels on white."""
    with Picture.open(io.BytesIO(content)) as picture:
        if picture.has_transparency_data:
            whole = picture.convert("RGBA")
            picture = Picture.new("RGB", whole.size, "white")
            picture.paste(whole, mask=whole.getchannel("A"))
        return np.asarray(picture.convert("RGB"))


def by_pillow_upright(picture: Picture.Image) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_pixels_equal_pillows(name) -> None:
    content = FILES[name]
    found = decode(bytearray(content))
    assert found.dtype == np.uint8
    assert np.array_equal(found, by_pillow(content))
    stored = encoding.encode(content, COPY)
    assert (stored.content, stored.reencoded, stored.turned) == (content, False, False)
    assert stored.extension == {"jpeg": "jpg", "mpo": "jpg", "tiff": "tif"}.get(
        name.split()[0], name.split()[0]
    )


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
def test_upright_applies_the_exif_orientation(form, orientation) -> None:
    content = with_orientation(orientation, form)
    for upright in (True, False):
        for encode in ("copy", "raw"):
            stored = encoding.encode(content, COPY.model_copy(update={"upright": upright, "encode": encode}))
            pixels = np.load(io.BytesIO(stored.content)) if encode == "raw" else decode(stored.content)
            with Picture.open(io.BytesIO(content)) as picture:
                expected = by_pillow_upright(picture) if upright else by_pillow(content)
            assert np.array_equal(decoding.turn(pixels, stored.orientation), expected)
            turned_by_pillow = form == "TIFF"
            assert stored.turned == (upright and orientation in range(2, 9) and not turned_by_pillow)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "exif", [b"XX*\0\x08\0\0\0\0\0", b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff", b"I"]
)
def test_damaged_exif_does_not_lose_the_image(form, exif) -> None:
    content = file_of(COLOUR, form, exif=b"Exif\0\0" + exif)
    assert exif in content
    stored = encoding.encode(content, COPY.model_copy(update={"upright": True}))
    assert (stored.orientation, stored.content) == (1, content)


@pytest.mark.parametrize("tile", [None, 20])
def test_a_damaged_png_is_refused_when_it_is_turned(tile) -> None:
    """Pillow looks for EXIF behind the pixels, and gives the pixels before the damage when asked again."""
    content = bytearray(file_of(photograph(40, 30), "PNG"))
    content[len(content) // 2] ^= 255
    storage = COPY.model_copy(update={"upright": True, "tile": tile})
    whole = RawImage("a", Path("a"), 0, np.empty(0))
    cut = [tiles.Tile("a_0_0", Path("a"), 0, whole, (0, 0, 20, 20))]
    with pytest.raises(OSError, match="broken data stream"):
        list(tiles.encode(content, cut, storage, {})) if tile else encoding.encode(content, storage)
    with pytest.raises(OSError, match="broken data stream"):
        decode(content, upright=True)


def large(form: str) -> bytes:
    """A file that claims 40000x40000 pixels."""
    if form == "PNG":
        return png(40_000, 40_000)
    content = file_of(photograph(64, 64), form)
    size = {"JPEG": struct.pack(">HH", 64, 64), "BMP": struct.pack("<ii", 64, 64)}[form]
    return content.replace(size, struct.pack({"JPEG": ">HH", "BMP": "<ii"}[form], 40_000, 40_000), 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP"])
@pytest.mark.parametrize(
    "function", [decode, lambda content: encoding.encode(content, COPY)], ids=["decode", "store"]
)
def test_a_decompression_bomb_is_refused_before_it_is_decoded(form, function) -> None:
    def refuse() -> None:
        with pytest.raises(ValueError, match="40000x40000 pixels is too large, .* dataset.tile=512"):
            function(large(form))

    assert growth(refuse) < 2**25


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (file_of(COLOUR, "GIF"), "unsupported format GIF, expected one of JPEG,"),
        (b"\xff\xd8", "^not an image, or an unsupported format$"),
        (bytes(1000), "^not an image, or an unsupported format$"),
    ],
    ids=["GIF", "start of a JPEG", "zeros"],
)
def test_other_formats_and_content_that_is_not_an_image_are_refused(content, message) -> None:
    for function in (decode, lambda content: encoding.encode(content, COPY)):
        with pytest.raises(ValueError, match=message):
            function(content)


@pytest.mark.parametrize(("height", "width"), [(100, 150), (150, 100), (300, 301), (66, 65), (1000, 65)])
@pytest.mark.parametrize("encode", ["copy", "jpeg", "raw"])
def test_larger_images_are_shrunk_to_the_short_side(height, width, encode) -> None:
    stored = encoding.encode(
        file_of(photograph(height, width)), COPY.model_copy(update={"shrink": 64, "encode": encode})
    )
    shape = (np.load(io.BytesIO(stored.content)) if encode == "raw" else decode(stored.content)).shape
    assert min(shape[:2]) == 64
    assert abs(max(shape[:2]) - 64 * max(height, width) / min(height, width)) <= 0.5
    assert stored.reencoded
    assert (stored.extension, stored.size) == (("npy", shape[:2]) if encode == "raw" else ("jpg", (0, 0)))


def test_shrunk_pixels_equal_pillows_turned_upright() -> None:
    storage = COPY.model_copy(update={"shrink": 20, "encode": "raw", "upright": True})
    with Picture.open(io.BytesIO(with_orientation(6))) as picture:
        upright = ImageOps.exif_transpose(picture)
    expected = np.asarray(upright.resize((20, round(20 * 53 / 37)), Picture.Resampling.BICUBIC))
    assert np.array_equal(
        np.load(io.BytesIO(encoding.encode(with_orientation(6), storage).content)), expected
    )


@pytest.mark.parametrize("encode", ["jpeg", "raw"])
def test_an_image_too_large_for_its_encoding_is_refused(encode) -> None:
    content = file_of(Picture.new("RGB", (70_000, 1)), "PNG")
    assert encoding.encode(content, COPY).content == content
    with pytest.raises(ValueError, match=f"70000x1 pixels is too large for encode={encode}"):
        encoding.encode(content, COPY.model_copy(update={"encode": encode}))


def isolated(function: Callable[[], None], seconds: float) -> None:
    """Run it in a process with little memory, so that a native crash, a hang or greed is a failure."""

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_virtual() + 2**31, resource.RLIM_INFINITY))
        function()

    process = start_fork(run)
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode == 0


def _virtual() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def test_mutated_files_give_pixels_or_a_reason() -> None:
    """If Pillow reads the file, the pixels equal Pillow's."""
    whole = [*FILES.values(), with_orientation(6), with_orientation(5, "PNG"), with_orientation(8, "WEBP")]
    ways = [
        COPY.model_copy(update={"upright": True}),
        COPY.model_copy(update={"verify": False, "upright": True}),
        COPY.model_copy(update={"encode": "jpeg", "shrink": 20}),
        COPY.model_copy(update={"encode": "raw", "upright": True}),
    ]

    def check(storage: Storage, content: bytes) -> str:
        try:
            stored = encoding.encode(content, storage)
        except Exception as error:
            assert str(error)
            assert "0x" not in str(error)  # a memory address would differ from run to run
            return "refused"
        if not storage.verify:
            return "unverified"
        raw = stored.extension == "npy"
        pixels = np.load(io.BytesIO(stored.content)) if raw else decode(stored.content)
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3 == pixels.shape[2]
        assert raw or np.array_equal(pixels, by_pillow(stored.content))
        return "pixels"

    def try_all() -> None:
        warnings.simplefilter("ignore")
        outcomes = Counter(
            check(storage, damaged(whole[seed * 7 % len(whole)], np.random.default_rng(seed)))
            for seed in range(500)
            for storage in ways
        )
        assert min(outcomes["pixels"], outcomes["refused"]) > 300, outcomes

    isolated(try_all, seconds=60)


def test_the_time_of_a_picture_is_that_of_its_camera(tmp_path) -> None:
    taken = []
    for second, name in ((7, "a.jpg"), (9, "b.heic"), (None, "c.png")):
        picture = Picture.new("RGB", (8, 8))
        exif = picture.getexif()
        if second:
            exif.get_ifd(decoding.EXIF)[decoding.TAKEN] = f"2024:05:01 12:00:0{second}"
        file = pillow_heif.from_pillow(picture) if "heic" in name else picture
        file.save(tmp_path / name, exif=exif.tobytes())
        taken.append(decoding.taken_at(tmp_path / name))
        of_shard = decoding.taken_at(io.BytesIO((tmp_path / name).read_bytes()))
        assert of_shard == taken[-1] or second is None
    assert taken[1] - taken[0] == 2
    assert np.isnan(taken[2]) and np.isnan(decoding.taken_at(tmp_path / "none.jpg"))
