"""An image before it is packed: a file, an object of a store, or pixels; and the lists of both splits."""

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image as Picture

from cl.images.contents import content_of, zipped
from cl.runtime import stores

UNLABELLED = -1


@dataclass(frozen=True)
class Image:
    """An image file and the number of its class, or UNLABELLED.

    group: images of one group are never negatives of each other and stay in one split; "" for none.
    positive, within: images of one value are positives of each other, and have only each other as negatives;
        "" for none.
    status: size and version when the source listed the image; None if the source did not look.
    """

    key: str
    path: Path
    label: int
    group: str = field(default="", kw_only=True)
    positive: str = field(default="", kw_only=True)
    within: str = field(default="", kw_only=True)
    status: str | None = field(default=None, kw_only=True, compare=False)

    @property
    def place(self) -> str:
        """The path or URL, for messages."""
        return str(self.path)

    def read(self) -> bytes:
        """Return the encoded image."""
        return content_of(self.path)


@dataclass(frozen=True)
class StoredImage(Image):
    """An image file at a URL; `path` is relative to the URL of the data set."""

    url: str

    @property
    def place(self) -> str:
        return self.url

    def read(self) -> bytes:
        content = stores.read(self.url)
        size = (self.status or "").partition(" ")[0]
        if size.isdecimal() and len(content) != int(size):
            raise ValueError(f"{self.url} changed after it was listed; run again")
        return content


@dataclass(frozen=True)
class BandFiles(Image):
    """An image with one file per band; `path` is that of the first band."""

    files: tuple[tuple[str, Path], ...]  # name and file of each band

    def read(self) -> bytes:
        """Return the files as a ZIP file, whose members have the bands' names."""
        return zipped(self.files)


@dataclass(frozen=True, eq=False)
class RawImage(Image):
    """One of the uncompressed images in the file or folder `path`; `pixels` is (H, W, 3) uint8."""

    pixels: np.ndarray

    def read(self) -> bytes:
        """Return the pixels as PNG, encoded on demand so that only one shard's images are in memory."""
        file = io.BytesIO()
        Picture.fromarray(self.pixels).save(file, "PNG", compress_level=6)
        return file.getvalue()


def raw_images(name: str, path: Path, pixels: np.ndarray, labels: Iterable[int]) -> list[Image]:
    """List the images `pixels` (n, H, W, 3) of `path` in file order, with keys `<name>/<number>`."""
    return [
        RawImage(f"{name}/{number:06d}", path, int(label), image)
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True))
    ]


@dataclass(frozen=True)
class Splits:
    """The classes, in the order of their labels, and the images of each split.

    left_out: counts of unlisted files and folders, by reason.
    remarks: sentences for the user.
    """

    classes: list[str]
    train: Sequence[Image]
    val: Sequence[Image]
    left_out: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
