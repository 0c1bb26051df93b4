"""Data sources, one file each: a pydantic `Config` and `splits(config, raw)`, which lists the images of every split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from cl.strict import Sizes, Strict


@dataclass(frozen=True)
class Image:
    """One image file and the number of its class."""

    key: str
    path: Path
    label: int


@dataclass(frozen=True)
class Splits:
    """The classes, in the order of their labels, and the images of each split."""

    classes: list[str]
    train: list[Image]
    val: list[Image]


class Scenes(Strict):
    """Embedded detection scenes: digits of scikit-learn placed on photographs (`cl.detection.scenes`)."""

    classes: list[Annotated[int, Field(ge=0, le=9)]] = Field(min_length=1, description="which digits, 0 to 9")
    train: int = Field(gt=0)
    val: int = Field(gt=0)
    size: int = Field(ge=64, description="side of a scene in pixels")
    digit: Sizes = Field(description="smallest and largest side of a digit in pixels")
    objects: Sizes = Field(description="fewest and most digits in a scene")

    @model_validator(mode="after")
    def _digits_fit(self) -> "Scenes":
        if self.digit[1] > self.size:
            raise ValueError(f"digit={list(self.digit)} does not fit into scenes of size={self.size}")
        return self


class Source(Strict):
    """What every data source has in common; a source's own `Config` extends it."""

    kind: str
    mean: tuple[float, float, float] = Field(description="of RGB in [0, 1], for normalisation")
    std: tuple[float, float, float]
    resize: int = Field(gt=0, description="evaluation: short side after resizing, pixels")
    crop: int = Field(gt=0, description="evaluation: side of the centre crop, pixels")
    shard_images: int = Field(gt=0, description="images a shard")
    scenes: Scenes
