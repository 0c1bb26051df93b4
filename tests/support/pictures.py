"""Image files of every kind, folders and shards of them, and damage to them."""

import hashlib
import io
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image as Picture

from cl.images import decoding


def photograph(height: int = 37, width: int = 53) -> Picture.Image:
    """Smooth colours, so that chroma subsampling matters and files are small."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Picture.fromarray(noise).resize((width, height), Picture.Resampling.BICUBIC)


def file_of(picture: Picture.Image, form: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    """An RGB PNG whose header claims that size, with hardly any pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


def with_orientation(orientation: int, form: str = "JPEG") -> bytes:
    """A file with this EXIF orientation."""
    exif = Picture.Exif()
    exif[decoding.ORIENTATION] = orientation
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
    "png 1x1": file_of(photograph(1, 1), "PNG"),
    **{name.lower(): file_of(COLOUR, name) for name in ("BMP", "WEBP", "AVIF", "TIFF", "PPM")},
    "tiff CMYK": file_of(COLOUR.convert("CMYK"), "TIFF"),
    "tiff LZW": file_of(COLOUR, "TIFF", compression="tiff_lzw"),
    "bmp 1-bit": file_of(COLOUR.convert("1"), "BMP"),
    "webp with alpha": file_of(COLOUR.convert("RGBA"), "WEBP", lossless=True),
}
UNREADABLE = {f"cat/{name}" for name in ("truncated", "empty", "text", "nowhere")}  # in `odd_tree`


def picture_file(path: Path, seed: int = 0, size: tuple[int, int] = (30, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    Picture.fromarray(noise).resize(size).save(path, "JPEG")
    return path


def tree(
    root: Path, count: int = 3, size: tuple[int, int] = (30, 20), classes: Sequence[str] = ("cat", "dog")
) -> Path:
    """Class folders, with `count` training and two validation images each."""
    for split in ("train", "val"):
        for label, name in enumerate(classes):
            for number in range(count if split == "train" else 2):
                picture_file(root / split / name / f"{number}.jpg", 100 * label + number, size)
    return root


def odd_tree(root: Path) -> Path:
    """Images of every kind and size, and some that cannot be read."""
    cat = tree(root) / "train" / "cat"
    for number, (name, content) in enumerate(FILES.items()):
        (cat / f"{number} {name.replace(':', '')}.jpg").write_bytes(content)
    whole = picture_file(cat / "large.jpg", size=(60, 90)).read_bytes()
    (cat / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (cat / "empty.jpg").write_bytes(b"")
    (cat / "text.jpg").write_text("no image")
    (cat / "nowhere.jpg").symlink_to("nothing")
    Picture.fromarray(np.full((20, 30), 0.5, np.float32)).save(cat / "float.tif")
    picture_file(root / "train" / "dog" / f"{'long' * 40}.jpg")
    picture_file(root / "train" / "dog" / "é.b.jpg")
    return root


@contextmanager
def without_heic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if pillow-heif were not installed."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pillow_heif", None)
        decoding.reads_heic.cache_clear()
        yield
    decoding.reads_heic.cache_clear()


def digest(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def shard_states(folder: Path) -> dict[str, tuple[int, int]]:
    """The finished shards, with inodes and times that change if they are written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*.tar")}
