"""Files of images of any bands in every format, and shards of them."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tifffile

from cl.data.reader import Reader
from cl.images import bands, decoding
from cl.images.image import Splits
from cl.images.listing import Keys, Listing
from cl.shards import writing
from cl.shards.manifest import Manifest
from cl.shards.survey import Team
from cl.sources import Storage
from tests.support.tiny import STORAGE

RNG = np.random.default_rng(0)
HEIGHT, WIDTH = 21, 34
DEPTHS = {
    "uint8": RNG.integers(0, 2**8, (HEIGHT, WIDTH, 5)).astype(np.uint8),
    "uint16": RNG.integers(0, 2**16, (HEIGHT, WIDTH, 5)).astype(np.uint16),
    "float32": RNG.normal(0, 1e6, (HEIGHT, WIDTH, 5)).astype(np.float32),
}
NAMES = ["coastal", "blue", "green", "red", "near infrared"]
ITEMS = (f'<Item name="DESCRIPTION" sample="{n}" role="description">{NAMES[n]}</Item>' for n in range(5))
GDAL = f"<GDALMetadata>{''.join(ITEMS)}</GDALMetadata>"
GRAY = {"photometric": "minisblack"}


def tiff(pixels: np.ndarray, photometric: str = "rgb", **options: object) -> bytes:
    """With separate planes, (H, W, bands) becomes (bands, H, W)."""
    file = io.BytesIO()
    if options.get("planarconfig") == "separate":
        pixels = np.moveaxis(pixels, -1, 0)
    tifffile.imwrite(file, pixels, photometric=photometric, **options)  # type: ignore[arg-type]
    return file.getvalue()


def png(pixels: np.ndarray, colours: int, **chunks: bytes) -> bytes:
    """By the format's definition; colours: 0 gray, 2 RGB, 3 palette, 4 and 6 with opacity."""
    bits = 8 * pixels.dtype.itemsize
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(f">u{bits // 8}").tobytes() for row in pixels)
    parts = {"IHDR": struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0), **chunks}
    parts |= {"IDAT": zlib.compress(rows), "IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body))
        + kind.encode()
        + body
        + struct.pack(">I", zlib.crc32(kind.encode() + body))
        for kind, body in parts.items()
    )


def planes(pixels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


def tagged(pixels: np.ndarray, missing: object = None, metadata: str = GDAL) -> bytes:
    """A GeoTIFF as GDAL writes it, as far as bands are concerned."""
    tags = [(42112, "s", 0, metadata, False)]
    tags += [] if missing is None else [(decoding.NO_DATA, "s", 0, str(missing), False)]
    return tiff(pixels, "minisblack", planarconfig="contig", extratags=tags, metadata=None)


def pages(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        for band in planes(pixels):
            writer.write(band, metadata=None)
    return file.getvalue()


def ome(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    metadata = {"axes": "CYX", "Channel": {"Name": NAMES}}
    tifffile.imwrite(file, planes(pixels), ome=True, metadata=metadata, **GRAY)
    return file.getvalue()


def saved(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, pixels)
    return file.getvalue()


def zipped(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **{name: pixels[..., n] for n, name in enumerate(NAMES)})
    return file.getvalue()


def imagej(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, planes(pixels), imagej=True, metadata={"axes": "CYX"})
    return file.getvalue()


WRITERS: dict[str, Callable[[np.ndarray], bytes]] = {
    "tif": lambda pixels: tiff(pixels, "minisblack", planarconfig="contig"),
    "planes.tif": lambda pixels: tiff(pixels, "minisblack", planarconfig="separate"),
    "pages.tif": pages,
    "bigendian.tif": lambda pixels: tiff(pixels, "minisblack", planarconfig="contig", byteorder=">"),
    "big.tif": lambda pixels: tiff(pixels, "minisblack", planarconfig="contig", bigtiff=True),
    "tiles.tif": lambda pixels: tiff(pixels, "minisblack", planarconfig="contig", tile=(16, 16)),
    "deflate.tif": lambda pixels: tiff(
        pixels, "minisblack", planarconfig="contig", compression="deflate", predictor=True
    ),
    "gdal.tif": tagged,
    "ome.tif": ome,
    "imagej.tif": imagej,
    "npy": saved,
    "planes.npy": lambda pixels: saved(planes(pixels)),
    "fortran.npy": lambda pixels: saved(np.asfortranarray(pixels)),
    "bigendian.npy": lambda pixels: saved(pixels.astype(pixels.dtype.newbyteorder(">"))),
    "npz": zipped,
}
NAMED = {"gdal.tif", "ome.tif", "npz"}


def shards(
    folder: Path, files: dict[str, bytes], channels: bands.Channels = "all", workers: int = 1
) -> tuple[Reader, Manifest]:
    """Training images in shards, with one of them for validation too."""
    root, keys = folder / "raw", Keys()
    train, val = Listing(root, keys), Listing(root, keys)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
        train.add(name, None)
    storage = Storage(**{"shard_images": 4, **STORAGE, "upright": True, "channels": channels})
    manifest = writing.write(Splits([], train, val), "unlabelled", storage, folder / "shards", Team(workers))
    return Reader(folder / "shards", "train"), manifest


def damaged(content: bytes, random: np.random.Generator, start: int = 0) -> bytes:
    """With changed bytes, half of the time near the start; sometimes cut."""
    changed = bytearray(content)
    most = min(len(content), start + 2000) if random.random() < 0.5 else len(content)
    for place in random.integers(start, most, random.integers(1, 20)):
        changed[place] = random.integers(0, 256)
    return bytes(changed[: random.integers(start + 1, most)] if random.random() < 0.1 else changed)
