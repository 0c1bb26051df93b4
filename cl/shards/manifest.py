"""The files in a folder of shards: WebDataset tars (byte-identical for equal images), index and manifest.

<folder>/train-000000.tar ...     members <key>.jpg and <key>.cls, readable by any WebDataset reader
<folder>/train.npy                the index: one INDEX row per sample
<folder>/train_keys.npy           the samples' keys, n byte strings
<folder>/train_groups.npy         the samples' groups, n int64, -1 for none; only for data with groups
<folder>/train_positive.npy       the samples' values of `dataset.positive`, as groups; so is train_within.npy
<folder>/duplicates.csv           images whose files equal another's, kept or left out; only if there are any
<folder>/manifest.json            classes, counts, sizes and hashes of the shards; skipped images with reasons

`cl.shards.writing` writes them, `cl.data.reader` reads them.
"""

import hashlib
from typing import Any

import numpy as np
from pydantic import Field

from cl.images.bands import Bands
from cl.runtime.base_config import BaseConfig

# height and width are 0 if the sample is an image file rather than an array of pixels.
INDEX = np.dtype(
    [
        ("shard", "<u4"),
        ("offset", "<u8"),
        ("length", "<u4"),
        ("label", "<i4"),
        ("height", "<u2"),
        ("width", "<u2"),
        ("orientation", "u1"),
    ]
)


class Shard(BaseConfig):
    """One tar file."""

    name: str = Field(pattern=r"^[\w-]+\.tar$")
    images: int
    bytes: int
    sha256: str


class Split(BaseConfig):
    """One split; `skipped` maps the keys of unreadable images to the reasons.

    groups: their number; None for data without groups.
    values: the number of values of `positive` and `within`, where the data has these columns.
    several_frames: images whose file has further frames, which are not used.
    flat: decoded deep images that the levels map to a single colour.
    """

    images: int
    groups: int | None = None
    values: dict[str, int] = Field(default={})
    shards: list[Shard]
    reencoded: int
    turned: int
    several_frames: int = 0
    flat: int = 0
    skipped: dict[str, str]


class Manifest(BaseConfig):
    """The contents of a folder of shards; `storage` records how the images were stored."""

    kind: str
    storage: dict[str, Any]
    classes: list[str]
    classes_sha256: str
    splits: dict[str, Split]
    table_sha256: str | None = Field(default=None, description="of the table that lists the images")
    levels: dict[str, tuple[float, float]] = Field(
        default={}, description="pixel values that become black and white, by the mode of deep images"
    )
    bands: Bands | None = Field(default=None, description="of images of any bands; None: of 8-bit RGB")
    drawn: dict[str, int] = Field(
        default={}, description="how many images of a value training draws together"
    )
    duplicates: dict[str, int] = Field(default={}, description="how many images are copies of others")


def sha256_of(classes: list[str]) -> str:
    """The hash of the classes' names."""
    return hashlib.sha256("\n".join(classes).encode()).hexdigest()
