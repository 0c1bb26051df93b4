"""A trained encoder with its transform: from images to features, outside the pipeline."""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from pydantic import ValidationError
from torch import Tensor, nn

from cl.data.transform import ImageLike, Transform
from cl.encoders import foreign
from cl.encoders._descriptions import first_of
from cl.networks.backbones import RGB, Backbone, BackboneConfig, check_size
from cl.networks.batch_norm import is_untrained
from cl.networks.passes import dense_features
from cl.runtime.base_config import check_crop
from cl.runtime.machine import channels_last, default_device
from cl.runtime.tensor_files import UNKNOWN, licence, save_tensors

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET = Transform(resize=256, crop=224, mean=MEAN, std=STD, upright=True)
Image = ImageLike
FILES_AND_PICTURES = (str, os.PathLike, Picture.Image)  # `ImageLike`, for isinstance
ALLOWED = (
    "the path of an image, a PIL image or an array (H, W, 3) of uint8, a list of these, or a tensor "
    "(N, 3, S, S) of transformed images"
)


class Encoder(nn.Module):
    """A backbone with the transform for its images; `cl.load` reads it from a file.

    transform: maps the path of an image, or a PIL image, to (3, S, S) float32; `model_copy(update=...)` of it
        may replace it. That of an encoder of C bands takes files and arrays (H, W, C), and gives C channels.
    architecture: what `sha256` covers besides the weights.
    records_size: whether the encoder's file records the image size; otherwise it is ImageNet's usual size.
    width: features per image.
    config: the architecture; None if no configuration describes it.
    licence: of the weights, as their file or publisher records it.
    choice: which of the file's networks it is, in words; empty if the file has one.
    """

    licence, choice = UNKNOWN, ""

    def __init__(
        self,
        network: Backbone,
        transform: Transform,
        architecture: str,
        *,
        records_size: bool = True,
        config: BackboneConfig | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.network, self.transform, self.architecture = network, transform, architecture
        self.width, self.records_size = network.fc_features, records_size
        self.eval()

    def __repr__(self) -> str:
        """One line; `encoder.network` shows all layers."""
        title = self.config.title if self.config else type(self.network).__name__
        return f"Encoder({title}: {self.width} features per image, {self.transform})"

    @property
    def sha256(self) -> str:
        """A hash of the architecture and of all parameters and buffers as they are now."""
        return foreign.identity(self.network, self.architecture)

    def forward(self, images: Tensor) -> Tensor:
        """Transformed images (N, 3, S, S), on the encoder's device, to features (N, width)."""
        return self.network(images.contiguous(memory_format=torch.channels_last))

    def set_size(self, resize: int | None, crop: int | None) -> None:
        """Transform images to this size, if one is given; raises ValueError if the file records another."""
        if (resize is None) != (crop is None):
            raise ValueError(f"found --resize {resize} with --crop {crop}; give both or neither")
        if not (resize and crop):
            return
        check_crop(resize, crop)
        if self.records_size:
            recorded = f"resize={self.transform.resize} and crop={self.transform.crop}"
            raise ValueError(f"the encoder's file records {recorded}; leave out --resize and --crop")
        self.transform = self.transform.model_copy(update={"resize": resize, "crop": crop})
        self.records_size = True

    @torch.no_grad()
    def embed(self, images: Image | Iterable[Image] | Tensor, batch_size: int = 64) -> Tensor:
        """Features (N, width) float32 on the CPU, in eval mode; a single image gives N = 1.

        Args:
            images: the path of an image, a PIL image or an array (H, W, 3), (H, W, 4) or (H, W) of uint8; an
                ordered iterable of these; or a tensor (N, 3, S, S) of transformed images.
            batch_size: images encoded at a time.

        Raises:
            ValueError: a file cannot be decoded, `images` is of another type, or features are not finite.
            OSError: a file cannot be read.
        """
        return self._in_batches(self, images, batch_size, torch.empty(0, self.width))

    @torch.no_grad()
    def patches(self, images: Image | Iterable[Image] | Tensor, batch_size: int = 64) -> Tensor:
        """Features of places in the images, (N, H', W', D) float32 on the CPU, in eval mode; as timm's.

        They cover the transformed image, which is the centre of the picture, row by row from the top left:
        the patches of a transformer after its last norm, without class token and registers, or the last map
        of a convolutional network. A place is as wide as a patch, or 32 px (8 px in networks for small
        images): 224 px give 14 x 14 patches of 16 px, or a map of 7 x 7. Arguments and errors as in `embed`.

        The mean over places is what `embed` gives only if the network merely averages, as residual ones do:
        not with a class token, or layers after the average (ConvNeXt; MobileNetV3, whose D is not `width`).

        Raises:
            ValueError: the network has neither patches nor maps.
        """
        empty = torch.empty(0, 0, 0, self.width)
        return self._in_batches(partial(dense_features, self.network), images, batch_size, empty)

    def _in_batches(
        self,
        encode: Callable[[Tensor], Tensor],
        images: Image | Iterable[Image] | Tensor,
        batch_size: int,
        empty: Tensor,
    ) -> Tensor:
        """The features of all images; `empty` for none."""
        was_training = self.training
        self.eval()
        is_normalised = isinstance(self.transform, Transform) and min(self.transform.mean) > 0
        if is_normalised and isinstance(images, Tensor) and _looks_raw(images):
            warnings.warn(
                "values from 0 to 1 or 255, expected normalised: use encoder.transform", stacklevel=4
            )
        channels = getattr(self.network, "image_channels", RGB)
        features, batches = [], _batches(images, batch_size, channels)
        try:
            for start, batch in zip(count(0, batch_size), batches):
                inputs = batch
                if not isinstance(inputs, Tensor):
                    inputs = torch.stack([self.transform(self._image_like(image)) for image in inputs])
                features.append(encode(self.match_weights(inputs)).float().cpu())
                if wrong := (~features[-1].isfinite().flatten(1).all(1)).nonzero().flatten().tolist():
                    name = f"image {start + wrong[0]}"
                    if not isinstance(batch, Tensor) and isinstance(batch[wrong[0]], str | os.PathLike):
                        name = str(batch[wrong[0]])
                    raise ValueError(not_finite(name))
        finally:
            self.train(was_training)
        return torch.cat(features) if features else empty

    def _image_like(self, image: Image) -> ImageLike:
        """An image as the transform takes it; arrays of RGB become pictures."""
        has_bands = getattr(self.transform, "bands", None) and isinstance(image, np.ndarray)
        if has_bands or isinstance(image, FILES_AND_PICTURES):
            return image
        if not isinstance(image, np.ndarray):
            raise ValueError(f"found a {type(image).__name__} among the images, expected {ALLOWED}")
        is_image = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (3, 4))
        if image.dtype != np.uint8 or not image.size or not is_image:
            raise ValueError(f"found an array of {image.dtype} and shape {image.shape}, expected {ALLOWED}")
        return Picture.fromarray(image)

    def match_weights(self, images: Tensor) -> Tensor:
        """Images on the device and in the precision of the weights, channels-last."""
        weights = next(self.parameters())
        return images.to(weights.device, weights.dtype).contiguous(memory_format=torch.channels_last)


def _looks_raw(images: Tensor) -> bool:
    return bool(images.numel() and images.min() >= 0 and (0 < images.max() <= 1 or images.max() > 20))


def remarks(encoder: Encoder, name: str) -> Iterator[str]:
    """Which of a file's networks an encoder of this name is; a warning if it was never trained."""
    if encoder.choice:
        yield f"{name}: {encoder.choice}; choose with --prefix, prefix= or FILE:PREFIX"
    if is_untrained(encoder.network):
        yield f"warning: {name} was never trained: every bias of its normalisation layers is 0"


def not_finite(image: str) -> str:
    """The error message about an image whose features are NaN or infinite."""
    return (
        f"{image} gives features that are not finite: the encoder's weights are too large for these pixels; "
        "choose an earlier checkpoint or another encoder"
    )


def _batches(
    images: Image | Iterable[Image] | Tensor, size: int, channels: int
) -> Iterable[Sequence[Image] | Tensor]:
    """The images in batches."""
    if size < 1:
        raise ValueError(f"batch_size={size}, expected at least 1")
    if isinstance(images, Tensor):
        if images.ndim != 4 or images.shape[1] != channels or not images.is_floating_point():
            raise ValueError(
                f"found a tensor of {images.dtype} and shape {tuple(images.shape)}, expected transformed "
                f"images (N, {channels}, S, S): stack outputs of encoder.transform"
            )
        return images.split(size) if len(images) else []
    is_pixels = isinstance(images, np.ndarray) and images.ndim in (2, 3) and images.dtype.kind not in "OU"
    if is_pixels or isinstance(images, FILES_AND_PICTURES):
        return [[images]]  # type: ignore[list-item]
    if isinstance(images, Set) or not isinstance(images, Iterable):
        raise ValueError(f"found a {type(images).__name__}, expected {ALLOWED}")
    remaining = iter(images)
    return iter(lambda: list(islice(remaining, size)), [])


def load(file: str, prefix: str | None = None) -> Encoder:
    """As `cl.load`, on the CPU."""
    return channels_last(with_transform(foreign.load(file, prefix), file))


def with_transform(found: foreign.ForeignEncoder, file: str) -> Encoder:
    """The encoder with its transform; raises ValueError if the file does not say what its channels are."""
    transform, records_size = transform_in(found.metadata, file), "transform" in found.metadata
    if (channels := found.config.channels) != transform.channels:
        raise ValueError(
            f"{file} holds an encoder for {channels} channels and does not record what they are; use it as "
            "init of a run with dataset.channels"
        )
    config = None if found.deviation else found.config
    encoder = Encoder(found.network, transform, found.architecture, records_size=records_size, config=config)
    encoder.licence, encoder.choice = licence(found.metadata), found.choice
    return encoder


def opened(encoder: "str | os.PathLike[str] | Encoder", prefix: str | None = None) -> Encoder:
    """The given encoder, or the one in a file on the default device.

    Raises:
        ValueError: its transform is not a `Transform`, which commands record; or see `load`.
    """
    if isinstance(encoder, Encoder):
        if not isinstance(encoder.transform, Transform):
            raise ValueError(
                f"encoder.transform is a {type(encoder.transform).__name__}, expected a Transform: change "
                "that of `cl.load` with model_copy(update=...), or use encoder.embed"
            )
        return encoder
    return load(os.fspath(encoder), prefix).to(default_device())


def save(encoder: Encoder, path: Path) -> None:
    """Write a file that `load` reads, whole or not at all; the encoder has a `config`."""
    assert encoder.config
    metadata = {"network": encoder.config.model_dump_json(), "transform": encoder.transform.model_dump_json()}
    metadata |= {"license": encoder.licence} if encoder.licence != UNKNOWN else {}
    save_tensors(encoder.network.state_dict(), path, metadata)


def built_for(network: nn.Module, config: BackboneConfig | None) -> int:
    """The side in pixels of the images that a network was made for, as far as its layers show."""
    is_small = getattr(getattr(network, "conv1", None), "stride", None) == (1, 1)
    return getattr(config, "size", None) or (32 if is_small else IMAGENET.crop)


def transform_of(found: foreign.ForeignEncoder, file: str) -> Transform:
    """As `transform_in`; without a recorded size, the network's if that is small or the only one."""
    transform, side = transform_in(found.metadata, file), built_for(found.network, found.config)
    if "transform" in found.metadata:
        return transform
    if side > transform.crop / 2:  # others train at 160 px, and are tested at 224
        with suppress(ValueError):
            check_size(file, found.network, transform.crop, "ImageNet")
            return transform
    return transform.model_copy(update={"resize": side, "crop": side})


def transform_in(metadata: dict[str, str], file: str) -> Transform:
    """The transform recorded with weights; else ImageNet's, with the normalisation of timm's description."""
    recorded = metadata.get("transform")
    described = IMAGENET.model_dump() | json.loads(metadata.get("normalisation", "{}"))
    try:
        return Transform.model_validate_json(recorded) if recorded else Transform.model_validate(described)
    except ValidationError as error:
        name = "records a transform that this version does not know" if recorded else "is described wrongly"
        raise ValueError(f"{file} {name}: {first_of(error)}") from None
