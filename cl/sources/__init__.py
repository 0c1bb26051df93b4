"""Data sources, one file each: a pydantic `Config`, and `splits(config, raw)` to list each split's images."""

import json
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from cl.images.band_files import SUFFIXES as BAND_SUFFIXES
from cl.images.bands import Channels
from cl.images.folders import SUFFIXES
from cl.images.image import UNLABELLED, Splits
from cl.runtime import stores
from cl.runtime.base_config import BaseConfig, Range, Sizes, check_crop

Labels = Literal["none", "some", "all"]


def check_labels(splits: Splits, expected: Labels) -> list[int]:
    """Compare the labels that a source found with `dataset.labels`.

    Returns:
        The number of labelled training images, and of validation images.

    Raises:
        ValueError: they contradict each other, there is only one class, a split has no labels, or a class has
            no training image.
    """
    counts = [sum(image.label != UNLABELLED for image in images) for images in (splits.train, splits.val)]
    labelled, listed = sum(counts), len(splits.train) + len(splits.val)
    actual = "none" if not labelled else "all" if labelled == listed else "some"
    if actual != expected and (expected, actual) != ("some", "all"):
        raise ValueError(
            f"dataset.labels={expected}, but {labelled} of {listed} images have a label; "
            f"choose dataset.labels={actual}"
        )
    if len(splits.classes) == 1:
        raise ValueError(
            f"all labels are {splits.classes[0]!r}, so every accuracy would be 100 %; give two classes or "
            "more, or choose dataset=unlabelled"
        )
    for name, count in zip(("training", "validation"), counts, strict=True):
        if labelled and not count:
            raise ValueError(
                f"no {name} image has a label; label some, or choose dataset.labels=none without labels"
            )
    trained = {image.label for image in splits.train}
    if untrained := [name for label, name in enumerate(splits.classes) if label not in trained]:
        raise ValueError(
            f"class {untrained[0]} has no training image; move one from validation, or remove the class"
        )
    return counts


class Scenes(BaseConfig):
    """Embedded detection scenes: ovals cut from photographs and pasted onto others (`cl.shards.scenes`)."""

    classes: list[str] = Field(
        min_length=1, description="photographs to cut objects from; the others are backgrounds"
    )
    train: int = Field(gt=0)
    val: int = Field(gt=0)
    size: int = Field(ge=64, description="side of a scene in pixels")
    side: Sizes = Field(description="smallest and largest side of an object in pixels")


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
    percentiles: Range = Field(
        description="percentiles of 16-bit, 32-bit and float gray pixels that become black and white"
    )
    tile: int | None = Field(
        gt=0, description="side in pixels of the tiles that larger images are cut into; null: keep them whole"
    )
    deduplicate: bool = Field(description="keep one of the images with equal bytes")
    channels: Channels | None = Field(
        default=None,
        description="all, or a list of bands by number (from 1) or name, which shards keep in the files' "
        "depth; null: RGB of 8 bits",
    )
    store: str | None = Field(
        description="absolute folder or URL for the shards, such as s3://bucket/shards; null: data/shards"
    )

    @property
    def drawn(self) -> dict[str, int]:
        """The settings that say which images training draws together, if any; a new value retrains."""
        return {}

    @model_validator(mode="after")
    def _settings_fit(self) -> "Storage":
        if self.store is not None and not (stores.is_url(self.store) or Path(self.store).is_absolute()):
            raise ValueError(
                f"store={self.store} must be a URL such as s3://bucket/shards, or an absolute folder"
            )
        if self.store is not None and re.search(r"://[^/]*@", self.store):
            raise ValueError(
                "store contains a user or password, which results and reports would show: set them in the "
                "environment, and write the address without them"
            )
        if self.tile and self.shrink:
            raise ValueError(
                f"tile={self.tile} cuts images that shrink={self.shrink} would make smaller; set one to null"
            )
        return self

    @model_validator(mode="after")
    def _keeps_bands(self) -> "Storage":
        allowed = {"encode": ("raw", "copy"), "shrink": (None,), "tile": (None,), "upright": (True,)}
        for name, values in allowed.items():
            if self.channels and (value := getattr(self, name)) not in values:
                given, choice = (json.dumps(each).strip('"') for each in (value, values[0]))
                raise ValueError(
                    f"{name}={given} does not work with channels, whose images are stored whole and upright; "
                    f"choose {name}={choice}, or channels=null"
                )
        return self


class Source(Storage):
    """The settings common to all data sources; each source's own `Config` extends it."""

    kind: str
    labels: Labels = Field(description="which images have a label; this decides which evaluations run")
    mean: tuple[float, float, float] = Field(description="of RGB in [0, 1], for normalisation")
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat]
    resize: int = Field(gt=0, description="evaluation: short side after resizing, pixels")
    crop: int = Field(gt=0, description="evaluation: side of the centre crop, pixels")
    show: list[int | str] | None = Field(
        default=None, description="of images of bands: the three bands, or the one, that pictures show"
    )
    scenes: Scenes

    def watched(self, raw: Path) -> Path | None:
        """The folder of your own images, watched for changes; None for published data sets."""
        return None

    def table_path(self, raw: Path) -> Path | None:
        """The table that lists the images, watched by its hash; None for sources without a table."""
        return None

    @property
    def value_columns(self) -> dict[str, str]:
        """The columns `positive` and `within` of a table, in this order, where they are used."""
        return {}

    def check_present(self, raw: Path) -> None:
        """Raises ValueError if raw data is missing that cannot be downloaded; reads only a table."""

    @field_validator("show")
    @classmethod
    def _three_or_one(cls, show: list[int | str] | None) -> list[int | str] | None:
        if show is not None and len(show) not in (1, 3):
            raise ValueError(f"{show} must be three bands, for red, green and blue, or one for gray")
        return show

    @model_validator(mode="after")
    def _crop_fits(self) -> "Source":
        check_crop(self.resize, self.crop)
        return self


def place(folder: Path, name: str) -> Path:
    """What a name stands for: any path, `~` or URL, or else relative to the folder."""
    given = stores.path_of(name) if stores.is_url(name) else Path(name).expanduser()
    return given if stores.is_url(name) or given.is_absolute() else folder / name


class OwnImages(Source):
    """Your own data set; `name` is its folder: any path, or relative to CL_RAW."""

    name: str

    @property
    def suffixes(self) -> set[str]:
        """Of the files that count as images."""
        return SUFFIXES | BAND_SUFFIXES if self.channels else SUFFIXES

    def folder(self, raw: Path) -> Path:
        """The folder, which may not exist."""
        return place(raw, self.name)

    def watched(self, raw: Path) -> Path:
        return self.folder(raw)
