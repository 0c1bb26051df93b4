"""Data sources, one file each: a pydantic `Config`, and `splits(config, raw)` to list each split's images."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image as Picture
from pydantic import Field, model_validator

from cl.runtime.base_config import BaseConfig, Sizes

UNLABELLED = -1


@dataclass(frozen=True)
class Image:
    """An image file and the number of its class, or UNLABELLED."""

    key: str
    path: Path
    label: int

    def read(self) -> bytes:
        """Return the encoded image."""
        return self.path.read_bytes()


@dataclass(frozen=True, eq=False)
class RawImage(Image):
    """One of many images stored uncompressed in the file or folder `path`; `pixels` is (H, W, 3) uint8."""

    pixels: np.ndarray

    def read(self) -> bytes:
        """Return the pixels as PNG, encoded on demand so that only one shard's images are in memory."""
        file = io.BytesIO()
        Picture.fromarray(self.pixels).save(file, "PNG", compress_level=6)
        return file.getvalue()


def raw_images(name: str, path: Path, pixels: np.ndarray, labels: Iterable[int]) -> list[Image]:
    """List the images `pixels` (n, H, W, 3) of `path` in file order, with keys `<name>/<number>`."""
    pairs = zip(pixels, labels, strict=True)
    return [
        RawImage(f"{name}/{number:06d}", path, int(label), image)
        for number, (image, label) in enumerate(pairs)
    ]


@dataclass(frozen=True)
class Splits:
    """The classes, in the order of their labels, and the images of each split; all of `val` is labelled.

    ignored: the number of files and hidden folders among the images whose names are not those of images.
    """

    classes: list[str]
    train: list[Image]
    val: list[Image]
    ignored: int = 0

    def __post_init__(self) -> None:
        assert all(image.label != UNLABELLED for image in self.val)


class Scenes(BaseConfig):
    """Embedded detection scenes: ovals cut out of photographs, pasted on others (`cl.detection.scenes`)."""

    classes: list[str] = Field(
        min_length=1, description="photographs to cut objects from; the others are backgrounds"
    )
    train: int = Field(gt=0)
    val: int = Field(gt=0)
    size: int = Field(ge=64, description="side of a scene in pixels")
    side: Sizes = Field(description="smallest and largest side of an object in pixels")
    objects: Sizes = Field(
        description="fewest and most objects per scene, before overlapping ones are dropped"
    )

    @model_validator(mode="after")
    def _objects_fit(self) -> "Scenes":
        if self.side[1] > self.size:
            raise ValueError(
                f"side={list(self.side)} does not fit into scenes of size={self.size}; choose a smaller side"
            )
        return self


class Storage(BaseConfig):
    """How images are stored in shards."""

    shard_images: int = Field(gt=0, description="images per shard")
    encode: Literal["copy", "jpeg", "raw"] = Field(
        description="copy the files, re-encode them as JPEG, or store uint8 pixels as .npy"
    )
    shrink: int | None = Field(
        gt=0, description="short side in pixels that larger images are reduced to; null: keep their size"
    )
    quality: int = Field(ge=1, le=95, description="quality of re-encoded JPEGs")
    verify: bool = Field(description="decode every image, so that none fails in training")
    upright: bool = Field(
        description="apply the EXIF orientation of images; the papers' ImageNet code does not"
    )


class Source(Storage):
    """The settings common to all data sources; each source's own `Config` extends it."""

    kind: str
    mean: tuple[float, float, float] = Field(description="of RGB in [0, 1], for normalisation")
    std: tuple[float, float, float]
    resize: int = Field(gt=0, description="evaluation: short side after resizing, pixels")
    crop: int = Field(gt=0, description="evaluation: side of the centre crop, pixels")
    scenes: Scenes

    @model_validator(mode="after")
    def _crop_fits(self) -> "Source":
        if self.crop > self.resize:
            raise ValueError(f"crop={self.crop} is larger than resize={self.resize}; choose a smaller crop")
        return self
