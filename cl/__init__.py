"""Efficient contrastive pretraining: any method with any loss, on the same data, with the same evaluation."""

from os import PathLike, fspath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from cl.hub.encoder import Encoder


def load(
    file: "str | PathLike[str]",
    *,
    device: "str | torch.device | None" = None,
    prefix: str | None = None,
) -> "Encoder":
    """A trained encoder in eval mode, with `transform`, `width` and `embed`.

    Files of other programs record no transform; their encoders get ImageNet's: short side 256, crop 224, and
    the mean and standard deviation in timm's config.json, if that is beside the file.
    `encoder.transform = encoder.transform.model_copy(update={"resize": 512, "crop": 448})` changes it.

    Args:
        file: models/backbone.safetensors, a file of `pipeline.export`, a ResNet of torchvision, timm, MoCo,
            MoCo v3, SimSiam, SwAV, lightly or solo-learn, a vision transformer of timm, DINO, DINOv2, MoCo v3
            or MAE, weights with timm's config.json beside them, or a name such as `torchvision:resnet50` or
            `timm:convnext_tiny.fb_in1k`.
        device: where the encoder computes; default: the CPU.
        prefix: the prefix of its tensor names, if the file holds several encoders.

    Raises:
        ValueError: the file is missing or damaged, or does not hold exactly one network of a known
            architecture with finite weights.
    """
    from cl.hub import encoder  # late: torch takes seconds to import

    return encoder.load(fspath(file), prefix).to(device or "cpu")
