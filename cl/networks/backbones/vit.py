"""Vision transformers as MoCo v3 trains them (Chen, Xie and He 2021), built from timm's blocks.

Positions are two-dimensional sines and cosines, the projection of patches is random and frozen, and all other
weights are drawn as in the authors' code. Tensors have timm's names.
"""

import math
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cl.networks.backbones import Backbone, SizedConfig, channels_in_timm

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

PERIOD = 10_000  # the longest wavelength of the positions, divided by 2 pi


class Config(SizedConfig):
    """A vision transformer of `depth` blocks.

    patch: side in pixels.
    positions: sines and cosines that stay fixed, or learned vectors.
    frozen_patches: the projection of patches stays random ("stop-gradient"), which makes training stable.
    pool: the class token, or the average over the patches' tokens; both after the last norm.
    layer_scale: initial factor of every branch (CaiT, DINOv2); null for none.
    registers: tokens besides the class token (DINOv2).
    """

    kind: Literal["vit"]
    patch: int = Field(gt=0, description="pixels")
    width: int = Field(gt=0)
    depth: int = Field(gt=0)
    heads: int = Field(gt=0)
    positions: Literal["sincos", "learned"]
    frozen_patches: bool
    pool: Literal["cls", "average"]
    layer_scale: float | None = Field(gt=0)
    registers: int = Field(ge=0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> "Config":
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")
        if self.size % self.patch:
            nearest = max(1, round(self.size / self.patch)) * self.patch
            raise ValueError(
                f"size={self.size} must be a multiple of patch={self.patch}; choose {nearest} for "
                "dataset.crop and the size of the views, or another patch"
            )
        if self.positions == "sincos" and self.width % 4:
            raise ValueError(f"positions=sincos needs a multiple of 4 as width, found width={self.width}")
        return self

    @property
    def architecture(self) -> str:
        registers = f", with {self.registers} registers" if self.registers else ""
        return (
            f"transformer of {self.depth} blocks, {self.width} wide with {self.heads} heads, in patches of "
            f"{self.patch} px{registers}{', with layer scale' if self.layer_scale else ''}"
        )

    def in_timm(self) -> tuple[str, dict[str, Any]]:
        return "vit_base_patch16_224", _arguments(self)  # they override all settings of this name

    def outline(self) -> nn.Module:
        with torch.device("meta"):
            return _unset(self)


def build(config: Config) -> Backbone:
    """The network with weights as in MoCo v3."""
    network = _unset(config)
    _initialise(network, config)
    if config.checkpointing:
        network.set_grad_checkpointing(True)
    return cast("Backbone", network)


def _unset(config: Config) -> "VisionTransformer":
    from timm.models.vision_transformer import VisionTransformer  # late: it takes seconds to import

    network = VisionTransformer(
        **_arguments(config), num_classes=0, drop_path_rate=config.drop_path, weight_init="skip"
    )
    cast("Backbone", network).fc_features = config.width
    return network


def _arguments(config: Config) -> dict[str, Any]:
    """The arguments that determine what a trained network computes."""
    return {
        "img_size": config.size,
        "patch_size": config.patch,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "global_pool": "token" if config.pool == "cls" else "avg",
        "fc_norm": False,
        "init_values": config.layer_scale,
        "reg_tokens": config.registers,
        "no_embed_class": config.registers > 0,
        "dynamic_img_size": True,
        **channels_in_timm(config),
    }


@torch.no_grad()
def _initialise(network: "VisionTransformer", config: Config) -> None:
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear):
            parts = 3 if name.endswith(".qkv") else 1  # queries, keys and values are separate matrices
            _draw_uniform(layer.weight, layer.in_features + layer.out_features // parts)
            nn.init.zeros_(layer.bias)
    projection = network.patch_embed.proj
    _draw_uniform(projection.weight, config.channels * config.patch**2 + config.width)
    nn.init.zeros_(projection.bias)
    projection.requires_grad_(not config.frozen_patches)
    for token in (network.cls_token, network.reg_token):
        if token is not None:
            nn.init.normal_(token, std=1e-6)
    positions = network.pos_embed
    assert positions is not None
    if config.positions == "learned":
        nn.init.trunc_normal_(positions, std=0.02)
    else:
        side = config.size // config.patch
        prefix = torch.zeros(positions.shape[1] - side**2, config.width)  # no position for the class token
        positions.copy_(torch.cat([prefix, sines(side, config.width)])[None])
        positions.requires_grad_(False)


def _draw_uniform(weight: Tensor, fan: int) -> None:
    """Xavier's uniform distribution; `fan` is the number of inputs plus outputs."""
    bound = math.sqrt(6 / fan)
    nn.init.uniform_(weight, -bound, bound)


def sines(side: int, width: int) -> Tensor:
    """Positions of side x side patches, row by row: (side^2, width).

    The four quarters are the sines and cosines of one coordinate, and the sines and cosines of the other.
    """
    rates = PERIOD ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    place = torch.arange(side, dtype=torch.float64)
    angles = [x.flatten()[:, None] * rates for x in torch.meshgrid(place, place, indexing="ij")]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], 1).float()
