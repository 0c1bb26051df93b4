"""A trained encoder with its transform: from images to features, outside the pipeline."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cl.data.transform import ImageLike, Transform
from cl.hub import foreign
from cl.networks.backbones import Backbone

IMAGENET = Transform(
    resize=256, crop=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), upright=True
)


class Encoder(nn.Module):
    """A backbone with the transform that its images need; `cl.load` reads it from a file.

    transform: from the path of an image, or a PIL image, to (3, S, S) float32; may be replaced.
    width: features per image.
    sha256: a hash of the architecture and of all parameters and buffers.
    """

    def __init__(self, network: Backbone, transform: Transform, sha256: str) -> None:
        super().__init__()
        self.network, self.transform, self.sha256 = network, transform, sha256
        self.width = network.fc_features
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Transformed images (N, 3, S, S), on the encoder's device, to features (N, width)."""
        return self.network(images.contiguous(memory_format=torch.channels_last))

    @torch.no_grad()
    def embed(self, images: ImageLike | Sequence[ImageLike] | Tensor, batch_size: int = 64) -> Tensor:
        """Features (N, width) float32 on the CPU, in eval mode; a single image gives N = 1.

        Args:
            images: the path of an image, a PIL image, a list of either, or a tensor (N, 3, S, S) of images
                that are already transformed.
            batch_size: images that are encoded at a time.

        Raises:
            ValueError: a file cannot be decoded, or the tensor has another shape.
            OSError: a file cannot be read.
        """
        if isinstance(images, Tensor) and not (
            images.ndim == 4 and images.shape[1] == 3 and images.is_floating_point()
        ):
            raise ValueError(
                f"found a tensor of {images.dtype} and shape {tuple(images.shape)}, expected transformed "
                "images (N, 3, S, S): stack what encoder.transform returns"
            )
        listed = images if isinstance(images, Tensor | Sequence) and not isinstance(images, str) else [images]
        was_training = self.training
        self.eval()
        features = [torch.empty(0, self.width)]
        try:
            for start in range(0, len(listed), batch_size):
                features.append(self._features(listed[start : start + batch_size]))
        finally:
            self.train(was_training)
        return torch.cat(features)

    def _features(self, images: Sequence[ImageLike] | Tensor) -> Tensor:
        if not isinstance(images, Tensor):
            images = torch.stack([self.transform(image) for image in images])
        return self(images.to(next(self.parameters()).device)).float().cpu()


def load(file: str, prefix: str | None = None) -> Encoder:
    """As `cl.load`, on the CPU."""
    found = foreign.load(file, prefix)
    return Encoder(found.network, transform_in(found.metadata), found.sha256).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]
    )


def transform_in(metadata: dict[str, str]) -> Transform:
    """The transform that a file of weights names; ImageNet's if it names none."""
    recorded = metadata.get("transform")
    return Transform.model_validate_json(recorded) if recorded else IMAGENET
