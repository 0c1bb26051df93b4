"""The evaluation view of images and their normalisation, as recorded in files of weights."""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from pydantic import Field, PositiveFloat
from torch import Tensor

from cl.data.ring import Array
from cl.data.views import centre
from cl.images import decoding
from cl.images.bands import Bands, composite, described, has_data, places, read_as, standardise
from cl.images.contents import content_of
from cl.runtime.base_config import BaseConfig, check_crop
from cl.runtime.machine import to_device

# The path of a file, or a picture; or pixels (H, W, C) in the type of an encoder's bands.
ImageLike = str | os.PathLike[str] | Picture.Image | np.ndarray


class Transform(BaseConfig):
    """Decode an image as in shards, resize it with antialiasing, crop its centre and normalise it.

    Images of bands are standardised by `bands` before resizing, and not normalised.
    """

    resize: int = Field(gt=0, description="short side after resizing, pixels")
    crop: int = Field(gt=0, description="side of the centre crop, pixels")
    mean: tuple[float, float, float] = Field(description="of RGB in [0, 1]")
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat]
    upright: bool = Field(description="rotate images upright by their EXIF orientation")
    levels: dict[str, tuple[float, float]] = Field(
        default={}, description="of deep images, as in `cl.shards.manifest`"
    )
    bands: Bands | None = Field(
        default=None, exclude_if=lambda bands: bands is None, description="of images of bands; null: RGB"
    )
    show: list[int | str] | None = Field(
        default=None, exclude_if=lambda show: show is None, description="the bands that pictures show"
    )

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return len(self.bands.names) if self.bands else 3

    def array(self, side: int) -> Array:
        """Memory for a view of an image: uint8 for RGB, float32 for bands."""
        return Array((side, side, self.channels), np.float32 if self.bands else np.uint8)

    def __call__(self, image: ImageLike) -> Tensor:
        """The normalised image; (C, crop, crop) float32. Raises as `pixels`."""
        return self.normalise(torch.from_numpy(self.pixels(image)[None]).permute(0, 3, 1, 2))[0]

    def pixels(self, image: ImageLike) -> np.ndarray:
        """The resized and cropped image; (crop, crop, 3) uint8, or (crop, crop, C) float32 of bands.

        Raises:
            ValueError: the file cannot be decoded.
            OSError: the file cannot be read.
        """
        check_crop(self.resize, self.crop)  # here, because `model_copy` does not validate
        return self.view(self.decoded(image))

    def view(self, pixels: np.ndarray) -> np.ndarray:
        """As `pixels`, of a decoded image."""
        standardised = standardise(pixels, self.bands) if self.bands else pixels
        return centre(standardised, self.resize, self.crop)

    def decoded(self, image: ImageLike) -> np.ndarray:
        """The image at its full size, (H, W, 3) uint8 or (H, W, C) as the bands; raises as `pixels`."""
        if isinstance(image, np.ndarray):
            bands = self.bands  # values of another type would be in other units
            if bands and (image.shape[2:], str(image.dtype)) != ((self.channels,), bands.dtype):
                raise ValueError(f"found {image.dtype} of shape {image.shape}, expected {self._expected}")
            return image
        if isinstance(image, Picture.Image):
            if self.bands:
                raise ValueError(f"found a picture, expected {self._expected}: give its file, or an array")
            return decoding.from_picture(image, upright=self.upright, levels=self.levels)
        content = content_of(Path(image))
        try:
            if self.bands:
                return read_as(content, self.bands).pixels
            return decoding.decode(content, upright=self.upright, levels=self.levels)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise errors of any type
            raise ValueError(f"{os.fspath(image)} cannot be decoded: {error}") from error

    def in_deviations(self, pixels: np.ndarray) -> np.ndarray:
        """Decoded pixels (..., C), each minus the mean of its band, in deviations; NaN without data."""
        if self.bands:
            known = has_data(pixels, self.bands.missing)
            return np.where(known, standardise(pixels, self.bands), np.float32(np.nan))
        return (pixels / 255 - np.array(self.mean)) / np.array(self.std)

    def check_show(self) -> None:
        """Raises ValueError if `show` names a band that the images lack."""
        if self.bands:
            places(self.bands, self.show)

    @property
    def shown(self) -> dict[str, str]:
        """A note for the report on what pictures show; empty for RGB."""
        return {"shown": described(self.bands, self.show)} if self.bands else {}

    def picture(self, pixels: np.ndarray) -> np.ndarray:
        """A decoded image for people, (H, W, 3) uint8; of bands, those of `show` between their levels."""
        return composite(pixels, self.bands, self.show) if self.bands else pixels

    def picture_of(self, image: ImageLike) -> np.ndarray:
        """As `picture`, of an image at its full size; raises as `pixels`."""
        return self.picture(self.decoded(image))

    def picture_of_view(self, image: Tensor) -> np.ndarray:
        """As `picture`, of a normalised image (C, H, W) on the CPU."""
        x = image.permute(1, 2, 0)
        if self.bands:
            mean, deviation = torch.tensor(self.bands.mean), torch.tensor(self.bands.deviation)
            return self.picture((x * deviation + mean).numpy())
        x = x * torch.tensor(self.std) + torch.tensor(self.mean)
        return x.clamp(0, 1).mul(255).round().byte().contiguous().numpy()

    @property
    def _expected(self) -> str:
        assert self.bands
        return f"the {self.bands.dtype} bands {', '.join(self.bands.names)}"

    def normalise(self, batch: Tensor) -> Tensor:
        """(N, 3, S, S) uint8 to float32 on the same device; bands are standardised already."""
        if self.bands:
            return batch.float()
        mean, std = self.mean_and_std(batch.device)
        return batch.float().div_(255).sub_(mean).div_(std)

    def mean_and_std(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Both (3, 1, 1), of RGB in [0, 1]."""
        mean, std = to_device(torch.tensor([self.mean, self.std]), device).view(2, 3, 1, 1)
        return mean, std
