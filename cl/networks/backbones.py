"""Encoders: torchvision's residual networks without their classifier."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cl.runtime.base_config import BaseConfig
from cl.runtime.tensor_files import load_state, load_tensors

if TYPE_CHECKING:
    from cl.networks.resnet import Network


class Config(BaseConfig):
    """A network. `stem: small`, for images of 32 to 96 pixels: a 3x3 convolution of stride 1, no pooling."""

    kind: Literal["resnet18", "resnet50"]
    width: Literal[1, 2, 4]
    stem: Literal["imagenet", "small"]
    zero_init_residual: bool


def build(config: Config) -> "Network":
    """The network: (N, 3, H, W) to average-pooled features (N, `fc_features`)."""
    from cl.networks.resnet import Network  # late: torchvision takes seconds to import

    return Network(config.kind, config.width, config.stem, zero_init_residual=config.zero_init_residual)


def load(config: Config, path: Path) -> "Network":
    """A finished backbone in eval mode.

    Raises:
        ValueError: the file is missing or damaged, or contains another network.
    """
    network = build(config)
    tensors, _ = load_tensors(path)
    load_state(
        network, tensors, path, f"run `dvc repro pretrain` for a {config.kind} with {config.stem} stem"
    )
    return network.eval()
