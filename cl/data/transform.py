"""The evaluation view of images and their normalisation, as recorded in files of weights."""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from pydantic import Field, PositiveFloat
from torch import Tensor

from cl.data.views import centre
from cl.images import decoding
from cl.runtime.base_config import BaseConfig, check_crop
from cl.runtime.machine import to_device

ImageLike = str | os.PathLike[str] | Picture.Image  # the path of a file, or a picture


class Transform(BaseConfig):
    """Decode an image as in shards, resize it with antialiasing, crop its centre and normalise it."""

    resize: int = Field(gt=0, description="short side after resizing, pixels")
    crop: int = Field(gt=0, description="side of the centre crop, pixels")
    mean: tuple[float, float, float] = Field(description="of RGB in [0, 1]")
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat]
    upright: bool = Field(description="rotate images upright by their EXIF orientation")
    levels: dict[str, tuple[float, float]] = Field(
        default={}, description="of deep images, as in `cl.shards.manifest`"
    )

    def __call__(self, image: ImageLike) -> Tensor:
        """The normalised image; (3, crop, crop) float32. Raises as `pixels`."""
        return self.normalise(torch.from_numpy(self.pixels(image)[None]).permute(0, 3, 1, 2))[0]

    def pixels(self, image: ImageLike) -> np.ndarray:
        """The resized and cropped image; (crop, crop, 3) uint8.

        Raises:
            ValueError: the file cannot be decoded.
            OSError: the file cannot be read.
        """
        check_crop(self.resize, self.crop)  # here, because `model_copy` does not validate
        return centre(self.decoded(image), self.resize, self.crop)

    def decoded(self, image: ImageLike) -> np.ndarray:
        """The image at its full size, (H, W, 3) uint8; raises as `pixels`."""
        if isinstance(image, Picture.Image):
            return decoding.from_picture(image, upright=self.upright, levels=self.levels)
        content = Path(image).read_bytes()
        try:
            return decoding.decode(content, upright=self.upright, levels=self.levels)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise errors of any type
            raise ValueError(f"{os.fspath(image)} cannot be decoded: {error}") from error

    def normalise(self, batch: Tensor) -> Tensor:
        """(N, 3, S, S) uint8 to float32 on the same device."""
        mean, std = self.mean_and_std(batch.device)
        return batch.float().div_(255).sub_(mean).div_(std)

    def mean_and_std(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Both (3, 1, 1), of RGB in [0, 1]."""
        mean, std = to_device(torch.tensor([self.mean, self.std]), device).view(2, 3, 1, 1)
        return mean, std
