"""Encoders, one file each: a pydantic `Config`, and `build(config)`, which returns the untrained network."""

import math
from collections.abc import Set
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cl.runtime.base_config import BaseConfig
from cl.runtime.registry import module_of
from cl.runtime.tensor_files import check_values, load_state, load_tensors

# Properties that methods and other parts may need: one network for RGB, or two for lightness and colour;
# residual stages that can run one by one; a network that detectron2 can build.
Trait = Literal["one network", "two networks", "residual stages", "in detectron2"]
# What draws weights, in torch.nn.init and of tensors; `erfinv_` makes a normal distribution of a uniform one.
DRAWN = {"erfinv_", "kaiming_uniform_", "normal_", "uniform_"}
Colours = tuple[float, float, float]  # of red, green and blue in [0, 1]
RGB = 3  # channels


class BackboneConfig(BaseConfig):
    """What every backbone has.

    channels: of the images; a run takes them from its shards.
    """

    kind: str
    channels: int = Field(default=RGB, gt=0, exclude_if=lambda channels: channels == RGB)

    @property
    def gives(self) -> Set[Trait]:
        """The network's traits, for parts that need more than its features."""
        return {"one network"}

    @property
    def title(self) -> str:
        """The architecture and the size of its images, for readers."""
        return self.architecture

    @property
    def architecture(self) -> str:
        """A name that two networks share only if the same tensors give the same features before pooling.

        Positions are ignored. Networks of different kinds may share an architecture.
        """
        raise NotImplementedError

    def in_timm(self) -> tuple[str, dict[str, Any]]:
        """The name and arguments of `timm.create_model`; raises ValueError if timm lacks the network."""
        raise NotImplementedError

    def outline(self) -> nn.Module | None:
        """The network on the meta device, to test image sizes; None if it takes images of any size."""
        return None


class SizedConfig(BackboneConfig):
    """The parameters of all networks that timm's code builds.

    size: side in pixels of the images that positions and windows are made for. For other sizes, a network
        interpolates them if it can; without positions or windows, it has no effect.
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
    """A network from images (N, `image_channels`, H, W) to pooled features (N, `fc_features`)."""

    fc_features: int
    image_channels: int


def build(config: BackboneConfig) -> Backbone:
    """The network, with random weights."""
    network: Backbone = module_of("networks.backbones", config.kind).build(config)
    network.image_channels = config.channels
    return network


def build_to_fill(config: BackboneConfig) -> Backbone:
    """The network with uninitialised weights, to load others into: drawing random ones is slow."""
    with _Undrawn():
        return build(config)


class _Undrawn(TorchFunctionMode):
    """In a block, tensors that would be drawn at random stay as they are."""

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if function.__name__ in DRAWN:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def load(config: BackboneConfig, path: Path) -> Backbone:
    """A trained backbone in eval mode; ValueError if its file is missing, damaged or of another network."""
    network = build_to_fill(config)
    tensors, _ = load_tensors(path)
    load_state(network, tensors, path, f"run `dvc repro pretrain` for a {config.title}")
    check_values(network.state_dict(), path)
    return network.eval()


def check_size(name: str, network: nn.Module, size: int, place: str, channels: int = RGB) -> None:
    """Raises ValueError unless a network takes square images of this side in pixels, and these channels.

    It may be on any device and in any precision.
    """
    if (expected := getattr(network, "image_channels", channels)) != channels:
        raise ValueError(
            f"{name} takes images of {expected} channels, found {channels}; choose another encoder or data"
        )
    weights = next(network.parameters())
    try:
        with torch.no_grad():
            features = network.eval()(weights.new_zeros(2, channels, size, size))
        if getattr(features, "ndim", 0) != 2:  # a tuple, or maps and tokens that the network does not pool
            found = list(getattr(features, "shape", [])) or type(features).__name__
            raise ValueError(f"it gives {found} for two images, expected two vectors")
    except (AssertionError, RuntimeError, ValueError) as error:  # networks differ in what they raise
        raise ValueError(
            f"{name} does not take the images of {size} px from {place} ({reason_of(error)}); choose "
            "another size there, or another backbone"
        ) from None


def with_channels_of(network: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a network for RGB, with the first layer inflated to the network's channels.

    Every channel gets the mean of the three filters, times 3 / C: an image of C equal channels then gives
    what a gray image gave. Raises ValueError if the tensors are for yet other channels.
    """
    fitted = dict(tensors)
    for name, expected in network.state_dict().items():
        found = tensors.get(name)
        if found is None or found.ndim != 4 or found.shape == expected.shape or expected.ndim != 4:
            continue
        (_, given, *rest), (_, channels, *wanted) = found.shape, expected.shape
        if given != channels and rest == wanted:
            if given != RGB:
                raise ValueError(
                    f"init takes images of {given} channels, but the images have {channels}; choose weights "
                    f"for RGB or for {channels} channels"
                )
            fitted[name] = found.mean(1, keepdim=True).repeat(1, channels, 1, 1) * (RGB / channels)
    return fitted


def channels_in_timm(config: BackboneConfig) -> dict[str, int]:
    """The argument of `timm.create_model` for other channels than RGB."""
    return {} if config.channels == RGB else {"in_chans": config.channels}


def reason_of(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def with_positions_of(network: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with the patches' positions interpolated to the network's image size.

    Bicubic and antialiased, as in timm; positions of other tokens stay. Without absolute positions
    (1, tokens, D) of a grid, nothing changes.
    """
    found, expected = tensors.get("pos_embed"), network.state_dict().get("pos_embed")
    grid = getattr(getattr(network, "patch_embed", None), "grid_size", None)  # Hiera has none
    if grid is None or found is None or expected is None or found.ndim != 3 or found.shape == expected.shape:
        return tensors
    from timm.layers import resample_abs_pos_embed  # late: it takes seconds to import

    others = expected.shape[1] - math.prod(grid)
    return tensors | {"pos_embed": resample_abs_pos_embed(found, list(grid), num_prefix_tokens=others)}
