"""Data sources, one file each: a pydantic `Config` and `splits(config, raw)`, which lists the images of every split."""

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
    """One image file and the number of its class, or UNLABELLED."""

    key: str
    path: Path
    label: int

    def read(self) -> bytes:
        """The encoded image."""
        return self.path.read_bytes()


@dataclass(frozen=True, eq=False)
class RawImage(Image):
    """One of many images that lie in `path` uncompressed; `pixels` (H, W, 3) uint8."""

    pixels: np.ndarray

    def read(self) -> bytes:
        """The pixels as PNG, encoded at each call, so that only the images of one shard are held at a time."""
        file = io.BytesIO()
        Picture.fromarray(self.pixels).save(file, "PNG", compress_level=6)
        return file.getvalue()


def raw_images(name: str, path: Path, pixels: np.ndarray, labels: Iterable[int]) -> list[Image]:
    """The images `pixels` (n, H, W, 3) of `path`; their keys are `<name>/<number>`, in the order of the file."""
    pairs = zip(pixels, labels, strict=True)
    return [
        RawImage(f"{name}/{number:06d}", path, int(label), image)
        for number, (image, label) in enumerate(pairs)
    ]


@dataclass(frozen=True)
class Splits:
    """The classes, in the order of their labels, and the images of each split; those of `val` all have a label.

    ignored: files, and hidden folders, that lie among the images and are none by their names.
    """

    classes: list[str]
    train: list[Image]
    val: list[Image]
    ignored: int = 0

    def __post_init__(self) -> None:
        assert all(image.label != UNLABELLED for image in self.val)


class Scenes(BaseConfig):
    """Embedded detection scenes: ovals cut out of some photographs, placed on others (`cl.detection.scenes`)."""

    classes: list[str] = Field(
        min_length=1, description="photographs that objects are cut out of; the others are grounds"
    )
    train: int = Field(gt=0)
    val: int = Field(gt=0)
    size: int = Field(ge=64, description="side of a scene in pixels")
    side: Sizes = Field(description="smallest and largest side of an object in pixels")
    objects: Sizes = Field(
        description="fewest and most objects in a scene, before those that overlap are left out"
    )

    @model_validator(mode="after")
    def _objects_fit(self) -> "Scenes":
        if self.side[1] > self.size:
            raise ValueError(f"side={list(self.side)} does not fit into scenes of size={self.size}")
        return self


class Storage(BaseConfig):
    """How images are stored in shards."""

    shard_images: int = Field(gt=0, description="images a shard")
    encode: Literal["copy", "jpeg", "raw"] = Field(
        description="files as they are, JPEG, or uint8 pixels as .npy"
    )
    shrink: int | None = Field(
        gt=0, description="short side in pixels to which larger images are brought; null: as they are"
    )
    quality: int = Field(ge=1, le=95, description="of the JPEGs that are written anew")
    verify: bool = Field(description="decode every image, so that none fails in training")
    upright: bool = Field(
        description="turn images as their EXIF orientation says; the papers' ImageNet code does not"
    )


class Source(Storage):
    """What every data source has in common; a source's own `Config` extends it."""

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
