"""Image files of every kind, whole and damaged, to pixels."""

import io
import multiprocessing
import resource
import struct
import time
import warnings
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image as Picture
from PIL import ImageOps

from cl.runtime.memory import growth
from cl.shards import images
from cl.sources import Storage
from tests.support.project import ROOT

SAMPLES = ROOT.parent / "shared" / "data" / "imagenet-sample"
COPY = Storage(shard_images=1, encode="copy", shrink=None, quality=90, verify=True, upright=False)


def photograph(height: int = 37, width: int = 53) -> Picture.Image:
    """Smooth colours, so that chroma subsampling matters and files are small."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Picture.fromarray(noise).resize((width, height), Picture.Resampling.BICUBIC)


def file_of(picture: Picture.Image, form: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def by_pillow(content: bytes) -> np.ndarray:
    with Picture.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB"))


def turned(orientation: int, form: str = "JPEG") -> bytes:
    exif = Picture.Exif()
    exif[images.ORIENTATION] = orientation
    return file_of(photograph(), form, exif=exif)


COLOUR = photograph()
CMYK = np.asarray(COLOUR.convert("CMYK"))
FILES = {
    **{f"jpeg {name}": file_of(COLOUR, subsampling=name) for name in ("4:4:4", "4:2:2", "4:2:0", "4:1:1")},
    "jpeg progressive": file_of(COLOUR, progressive=True),
    "jpeg restarts": file_of(COLOUR, restart_marker_rows=1),
    "jpeg stored as RGB": file_of(COLOUR, keep_rgb=True),
    "jpeg gray": file_of(COLOUR.convert("L")),
    "jpeg CMYK, Adobe-inverted": file_of(COLOUR.convert("CMYK")),
    "jpeg YCCK": simplejpeg.encode_jpeg(CMYK, colorspace="CMYK"),
    **{f"jpeg {h}x{w}": file_of(photograph(h, w)) for h, w in ((1, 1), (1, 50), (50, 1), (2, 3), (17, 15))},
    "mpo": file_of(COLOUR, "MPO", save_all=True, append_images=[Picture.new("RGB", COLOUR.size)]),
    **{f"png {mode}": file_of(COLOUR.convert(mode), "PNG") for mode in ("RGB", "L", "1", "P", "RGBA", "LA")},
    "png P with a transparent colour": file_of(COLOUR.convert("P"), "PNG", transparency=3),
    "png P with transparencies": file_of(COLOUR.convert("P"), "PNG", transparency=bytes(range(256))),
    "png RGB with a transparent colour": file_of(COLOUR, "PNG", transparency=(1, 2, 3)),
    "png 16-bit RGB": cv2.imencode(".png", np.asarray(COLOUR).astype(np.uint16) * 257)[1].tobytes(),
    "png 1x1": file_of(photograph(1, 1), "PNG"),
    **{name.lower(): file_of(COLOUR, name) for name in ("BMP", "WEBP", "TIFF", "PPM")},
    "tiff CMYK": file_of(COLOUR.convert("CMYK"), "TIFF"),
    "tiff LZW": file_of(COLOUR, "TIFF", compression="tiff_lzw"),
    "bmp 1-bit": file_of(COLOUR.convert("1"), "BMP"),
    "webp with alpha": file_of(COLOUR.convert("RGBA"), "WEBP", lossless=True),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_pixels_are_those_of_pillow(name) -> None:
    content = FILES[name]
    found = images.decode(bytearray(content))
    assert found.dtype == np.uint8
    assert np.array_equal(found, by_pillow(content))
    stored = images.store(content, COPY)
    assert (stored.content, stored.reencoded, stored.turned) == (content, False, False)
    assert stored.extension == {"jpeg": "jpg", "mpo": "jpg", "tiff": "tif"}.get(
        name.split()[0], name.split()[0]
    )


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no ImageNet samples on this machine")
def test_pixels_of_imagenet_are_those_of_pillow() -> None:
    files = sorted(SAMPLES.rglob("*.JPEG"))
    assert len(files) == 100
    for path in files:
        content = path.read_bytes()
        assert np.array_equal(images.decode(content), by_pillow(content)), path.name


def test_sixteen_bits_of_gray_are_scaled() -> None:
    levels = np.arange(0, 2**16, 37, dtype=np.uint16)[None]
    for form in ("PNG", "TIFF"):
        found = images.decode(file_of(Picture.fromarray(levels), form))
        assert np.array_equal(found, np.repeat(levels // 256, 3, axis=0).T[None])


def test_pixels_without_a_known_range_are_refused() -> None:
    with pytest.raises(ValueError, match="pixels of mode F have no known range"):
        images.store(file_of(Picture.fromarray(np.full((2, 3), 0.5, np.float32)), "TIFF"), COPY)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
def test_images_are_turned_as_exif_says_if_that_is_asked_for(form, orientation) -> None:
    content = turned(orientation, form)
    for upright in (True, False):
        for encode in ("copy", "raw"):
            stored = images.store(content, COPY.model_copy(update={"upright": upright, "encode": encode}))
            pixels = np.load(io.BytesIO(stored.content)) if encode == "raw" else images.decode(stored.content)
            with Picture.open(io.BytesIO(content)) as picture:
                expected = np.asarray(
                    (ImageOps.exif_transpose(picture) if upright else picture).convert("RGB")
                )
            assert np.array_equal(images.turn(pixels, stored.orientation), expected)
            assert stored.turned == (
                upright and orientation in range(2, 9) and form != "TIFF"
            )  # Pillow turns those


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "exif", [b"XX*\0\x08\0\0\0\0\0", b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff", b"I"]
)
def test_damaged_exif_does_not_lose_the_image(form, exif) -> None:
    content = file_of(COLOUR, form, exif=b"Exif\0\0" + exif)
    assert exif in content
    stored = images.store(content, COPY.model_copy(update={"upright": True}))
    assert (stored.orientation, stored.content) == (1, content)


def png(width: int, height: int) -> bytes:
    """The head of an RGB PNG of that size, and next to no pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )


def large(form: str) -> bytes:
    """A file that claims 60000x60000 pixels."""
    if form == "PNG":
        return png(60_000, 60_000)
    content = file_of(photograph(64, 64), form)
    size = {"JPEG": struct.pack(">HH", 64, 64), "BMP": struct.pack("<ii", 64, 64)}[form]
    return content.replace(size, struct.pack({"JPEG": ">HH", "BMP": "<ii"}[form], 60_000, 60_000), 1)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP"])
@pytest.mark.parametrize(
    "function", [images.decode, lambda content: images.store(content, COPY)], ids=["decode", "store"]
)
def test_a_decompression_bomb_is_refused_at_once(form, function) -> None:
    def refuse() -> None:
        with pytest.raises(Picture.DecompressionBombError, match="3600000000 pixels"):
            function(large(form))

    began = time.monotonic()
    assert growth(refuse) < 2**25
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("form", ["GIF", "ICO", "TGA", "EPS"])
def test_other_formats_are_named(form) -> None:
    for function in (images.decode, lambda content: images.store(content, COPY)):
        with pytest.raises(
            ValueError, match=f"the format {form} is none of JPEG, MPO, PNG, BMP, WEBP, PPM, TIFF"
        ):
            function(file_of(COLOUR, form))


@pytest.mark.parametrize("content", [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\xff\xd8", b"\0" * 1000])
def test_what_is_no_image_is_called_so(content) -> None:
    for function in (images.decode, lambda content: images.store(content, COPY)):
        with pytest.raises(ValueError, match="^it is no image, or of an unknown format$"):
            function(content)
    with pytest.raises(ValueError, match="the file is empty"):
        images.store(b"", COPY)


@pytest.mark.parametrize(("height", "width"), [(100, 150), (150, 100), (300, 301), (66, 65), (1000, 65)])
@pytest.mark.parametrize("encode", ["copy", "jpeg", "raw"])
def test_larger_images_are_shrunk_to_the_short_side(height, width, encode) -> None:
    stored = images.store(
        file_of(photograph(height, width)), COPY.model_copy(update={"shrink": 64, "encode": encode})
    )
    shape = (np.load(io.BytesIO(stored.content)) if encode == "raw" else images.decode(stored.content)).shape
    assert min(shape[:2]) == 64
    assert abs(max(shape[:2]) - 64 * max(height, width) / min(height, width)) <= 0.5
    assert stored.reencoded
    assert (stored.extension, stored.size) == (("npy", shape[:2]) if encode == "raw" else ("jpg", (0, 0)))


def test_smaller_images_are_not_enlarged() -> None:
    content = file_of(photograph(64, 100))
    copied = images.store(content, COPY.model_copy(update={"shrink": 64}))
    assert (copied.content, copied.reencoded) == (content, False)
    anew = images.store(content, COPY.model_copy(update={"shrink": 64, "encode": "jpeg"}))
    assert anew.content == file_of(Picture.fromarray(images.decode(content)), quality=90)
    assert anew.reencoded
    raw = images.store(content, COPY.model_copy(update={"shrink": 65, "encode": "raw"}))
    assert np.array_equal(np.load(io.BytesIO(raw.content)), images.decode(content))


def test_shrunk_pixels_are_those_of_pillow_turned_upright() -> None:
    storage = COPY.model_copy(update={"shrink": 20, "encode": "raw", "upright": True})
    with Picture.open(io.BytesIO(turned(6))) as picture:
        upright = ImageOps.exif_transpose(picture)
    expected = np.asarray(upright.resize((20, round(20 * 53 / 37)), Picture.Resampling.BICUBIC))
    assert np.array_equal(np.load(io.BytesIO(images.store(turned(6), storage).content)), expected)


@pytest.mark.parametrize("encode", ["jpeg", "raw"])
def test_an_image_too_long_for_its_new_form_is_refused(encode) -> None:
    content = file_of(Picture.new("RGB", (70_000, 1)), "PNG")
    assert images.store(content, COPY).content == content
    with pytest.raises(ValueError, match=f"an image of 70000x1 pixels is too large for encode={encode}"):
        images.store(content, COPY.model_copy(update={"encode": encode}))


def mutated(content: bytes, seed: int) -> bytes:
    """A few flipped bits, a damaged head, a run of zeros, bytes put in, cut out or cut off."""
    rng = np.random.default_rng(seed)
    out, at, length = bytearray(content), int(rng.integers(len(content))), int(rng.integers(1, 64))
    match seed % 6:
        case 0:
            for _ in range(length // 8 + 1):
                out[rng.integers(len(out))] ^= 1 << rng.integers(8)
        case 1:
            for _ in range(length // 16 + 1):
                out[rng.integers(min(64, len(out)))] = rng.integers(256)
        case 2:
            out[at : at + length] = bytes(len(out[at : at + length]))
        case 3:
            out[at:at] = rng.bytes(length)
        case 4:
            del out[at : at + length]
        case 5:
            del out[at:]
    return bytes(out)


def isolated(function: Callable[[], None], seconds: float) -> None:
    """Run it in a process of its own with little memory, so that a native crash, a hang or greed are failures."""

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_virtual() + 2**31, resource.RLIM_INFINITY))
        function()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode == 0


def _virtual() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def test_mutated_files_give_pixels_or_a_reason() -> None:
    """And pixels that are Pillow's, when it reads the file."""
    whole = [*FILES.values(), turned(6), turned(5, "PNG"), turned(8, "WEBP")]
    ways = [
        COPY.model_copy(update={"upright": True}),
        COPY.model_copy(update={"verify": False, "upright": True}),
        COPY.model_copy(update={"encode": "jpeg", "shrink": 20}),
        COPY.model_copy(update={"encode": "raw", "upright": True}),
    ]

    def try_all() -> None:
        warnings.simplefilter("ignore")
        seen = {"pixels": 0, "refused": 0}
        for seed in range(500):
            content = mutated(whole[seed * 7 % len(whole)], seed)
            for storage in ways:
                try:
                    stored = images.store(content, storage)
                except Exception as error:
                    assert str(error)
                    assert "0x" not in str(error)  # an address would differ from run to run
                    seen["refused"] += 1
                    continue
                if storage.verify:
                    pixels = (
                        np.load(io.BytesIO(stored.content))
                        if stored.extension == "npy"
                        else images.decode(stored.content)
                    )
                    assert pixels.dtype == np.uint8
                    assert pixels.ndim == 3 == pixels.shape[2]
                    assert stored.extension == "npy" or np.array_equal(pixels, by_pillow(stored.content))
                    seen["pixels"] += 1
        assert min(seen.values()) > 300, seen

    isolated(try_all, seconds=60)
