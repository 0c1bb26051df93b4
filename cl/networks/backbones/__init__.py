"""Encoders, one file each: a pydantic `Config`, and `build(config)`, which gives the untrained network."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from cl.networks import feature_maps, layers, patches
from cl.runtime.base_config import BaseConfig
from cl.runtime.registry import module_of
from cl.runtime.tensor_files import load_state, load_tensors

if TYPE_CHECKING:
    from cl.config import Params


class BackboneConfig(BaseConfig):
    """What every backbone has."""

    kind: str

    @property
    def title(self) -> str:
        """The architecture and the size of its images, for readers."""
        return self.architecture

    @property
    def architecture(self) -> str:
        """Different for networks that compute different features before pooling, given the same tensors.

        Apart from positions; two kinds may build networks of one architecture.
        """
        raise NotImplementedError

    def in_timm(self) -> tuple[str, dict[str, Any]]:
        """The name and the arguments with which `timm.create_model` builds this network.

        Raises:
            ValueError: timm does not have it.
        """
        raise NotImplementedError

    def check(self, params: "Params") -> None:
        """Check the other parameters against the backbone's own rules.

        Raises:
            ValueError: they do not fit together.
        """


class SizedConfig(BackboneConfig):
    """What the networks share that timm's code builds.

    size: side in pixels of the images that positions and windows are made for; others are interpolated where
        the network can, and networks without positions take no notice.
    drop_path: the largest probability with which a residual branch is left out (stochastic depth).
    checkpointing: recompute activations in the backward pass instead of keeping them.
    """

    size: int = Field(gt=0, description="pixels")
    drop_path: float = Field(ge=0, lt=1)
    checkpointing: bool

    @property
    def title(self) -> str:
        return f"{self.architecture}, for {self.size} px"


class Backbone(nn.Module):
    """What is known of every network: (N, 3, H, W) to pooled features (N, `fc_features`)."""

    fc_features: int


def build(config: BackboneConfig) -> Backbone:
    """The network, with random weights."""
    network: Backbone = module_of("networks.backbones", config.kind).build(config)
    return network


def load(config: BackboneConfig, path: Path) -> Backbone:
    """A finished backbone in eval mode.

    Raises:
        ValueError: the file is missing or damaged, or contains another network.
    """
    network = build(config)
    tensors, _ = load_tensors(path)
    load_state(network, tensors, path, f"run `dvc repro pretrain` for a {config.title}")
    return network.eval()


def check_sizes(name: str, network: nn.Module, params: "Params") -> None:
    """Check that a network, on the meta device, takes images of all sizes that it will see.

    Raises:
        ValueError: it does not take one of them.
    """
    for place, size in _sizes(params):
        check_size(name, network, size, place)


def check_size(name: str, network: nn.Module, size: int, place: str) -> None:
    """Check that a network, on any device, takes square images of this side in pixels.

    Raises:
        ValueError: it does not, for example because its patches do not divide them.
    """
    device = next(network.parameters()).device
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(2, 3, size, size, device=device))
    except (AssertionError, RuntimeError, ValueError) as error:  # each network has its own way
        reason = feature_maps.reason_of(error)
        raise ValueError(
            f"{name} does not take the images of {size} px from {place} ({reason}); choose another size "
            "there, or another backbone"
        ) from None


def check_parts(name: str, network: nn.Module, params: "Params") -> None:
    """Check that nothing needs the stages of a residual network, and that all find their blocks and maps.

    Args:
        network: of timm, on the meta device.

    Raises:
        ValueError: patches, an evaluation or a detector cannot be made from the network.
    """
    stage = getattr(params.patches, "stage", None)
    if stage in patches.STITCHED:
        raise ValueError(
            f"patches.stage={stage} runs a part of a network of kind=resnet, not of {name}; choose "
            "patches.stage=final, or backbone=resnet50"
        )
    layers.check_blocks(network, params.evaluations)
    for key, transfer in params.transfers.items():
        if "c4" in transfer.detector:
            raise ValueError(
                f"transfers.{key}.detector={transfer.detector} takes apart a network of kind=resnet, not "
                f"{name}; choose a transfer with a pyramid, such as transfer=[voc_fpn], or backbone=resnet50"
            )
        if transfer.engine == "detectron2":
            raise ValueError(
                f"transfers.{key}.engine=detectron2 builds on networks of kind=resnet, not on {name}; choose "
                f"transfers.{key}.engine=torchvision, or backbone=resnet50"
            )
        feature_maps.check(name, network, f"transfers.{key}", transfer.test_side)


def _sizes(params: "Params") -> list[tuple[str, int]]:
    """Where images come from, and their side in pixels when the backbone sees them."""
    grid = getattr(params.patches, "grid", 1)
    found = [("dataset.crop", params.dataset.crop)]
    for name, view in params.views.items():
        side = params.method.encoded_size(view.size) // grid
        whole = side == view.size
        found.append((f"views.{name}" if whole else f"views.{name}, cut into patches", side))
    return found


def output_width(network: nn.Module, size: int) -> int:
    """The features that a network on the meta device gives for an image of this side."""
    with torch.no_grad():
        features: Tensor = network.eval()(torch.empty(2, 3, size, size, device="meta"))
    return features.shape[1]


def with_positions_of(network: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with positions of patches interpolated to the size of images that a network is made for.

    Bicubic and antialiased, as timm does it; positions of other tokens stay. Networks without absolute
    positions (1, tokens, D) are left as they are.
    """
    found, expected = tensors.get("pos_embed"), network.state_dict().get("pos_embed")
    if found is None or expected is None or found.ndim != 3 or found.shape == expected.shape:
        return tensors
    from timm.layers import resample_abs_pos_embed  # late: it takes seconds to import

    grid = list(cast("Any", network).patch_embed.grid_size)
    others = expected.shape[1] - math.prod(grid)
    return tensors | {"pos_embed": resample_abs_pos_embed(found, grid, num_prefix_tokens=others)}
