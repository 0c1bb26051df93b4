"""Combinatorial patches (Fast-MoCo): patches of an image are encoded, and each embedding combines several."""

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cl.networks.passes import in_microbatches
from cl.runtime.base_config import BaseConfig
from cl.runtime.machine import to_device

if TYPE_CHECKING:
    from torchvision.models.resnet import ResNet

# Patches of a 2 x 2 grid, column by column: 0 top left, 1 bottom left, 2 top right, 3 bottom right.
ADJACENT = {"vertical": [(0, 1), (2, 3)], "horizontal": [(0, 2), (1, 3)]}
# The stages after which patches are combined by averaging, in order.
MEANS = ("final", "projector", "predictor")
# The stages at which adjacent patches are stitched, and how many parts of the backbone come before.
STITCHED = {"input": 0, "stage1": 2, "stage2": 3, "stage3": 4}

Layer = Callable[[Tensor], Tensor]


class Whole(BaseConfig):
    """Views are encoded as they are."""

    kind: Literal["whole"]


class Combine(BaseConfig):
    """Views are cut into `grid` x `grid` patches; each embedding combines `choose` of them.

    stage: the part of the network after which they are combined; Fast-MoCo: final, the pooled features.
    pairs: all combinations; or, in a 2 x 2 grid, the four adjacent pairs; or the two adjacent pairs of one
        direction, drawn at each step. Only adjacent patches can be stitched (combined before `final`).
    """

    kind: Literal["combine"]
    grid: int = Field(ge=2)
    choose: int = Field(ge=1)
    stage: Literal["input", "stage1", "stage2", "stage3", "final", "projector", "predictor"]
    pairs: Literal["all", "adjacent", "drawn"]

    @model_validator(mode="after")
    def _possible(self) -> "Combine":
        if self.choose > self.grid**2:
            raise ValueError(
                f"choose={self.choose} must be at most {self.grid**2}, the patches of a grid of {self.grid}"
            )
        if self.pairs != "all" and (self.grid, self.choose) != (2, 2):
            raise ValueError(
                f"pairs={self.pairs} needs grid=2 and choose=2, "
                f"found grid={self.grid} and choose={self.choose}"
            )
        if self.pairs == "all" and self.stage in STITCHED:
            raise ValueError(
                f"pairs=all cannot be stitched at stage={self.stage}; "
                "choose pairs=adjacent or drawn, or a later stage"
            )
        return self


Config = Whole | Combine


def encode(
    config: Config,
    images: Tensor,
    backbone: "ResNet",
    projector: Layer,
    predictor: Layer,
    generator: torch.Generator,
) -> Tensor:
    """(N, 3, H, W) through the three networks to (N, E, D), E embeddings per image; E = 1 for whole views.

    `generator` draws the direction for `pairs=drawn`.
    """
    if isinstance(config, Whole):
        return predictor(projector(backbone(images)))[:, None]
    n, patches = len(images), cut(images, config.grid)
    if config.stage in STITCHED:
        features = _stitched_features(config, patches.unflatten(0, (n, 4)), backbone, generator)
        return predictor(projector(features)).unflatten(0, (n, -1))
    chosen = _combinations(config, generator)
    x = patches  # (N G^2, 3, H / G, W / G), image-major
    for stage, network in zip(MEANS, (backbone, projector, predictor), strict=True):
        x = network(x)
        if stage == config.stage:
            x = combine(x.unflatten(0, (n, -1)), chosen).flatten(0, 1)  # (N E, ...)
    return x.unflatten(0, (n, -1))


def _stitched_features(
    config: Combine, patches: Tensor, backbone: "ResNet", generator: torch.Generator
) -> Tensor:
    """(N, 4, 3, H / 2, W / 2) to (N E, width): single patches before the stage, stitched pairs after it."""
    stem = nn.Sequential(backbone.conv1, backbone.bn1, backbone.relu, backbone.maxpool)
    layers = [backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4]
    parts = [stem, *layers, nn.Sequential(backbone.avgpool, nn.Flatten())]
    before = nn.Sequential(*parts[: STITCHED[config.stage]])
    after = nn.Sequential(*parts[STITCHED[config.stage] :])
    directions = _directions(config, generator)  # drawn here, because microbatches are encoded twice

    def encode(patches: Tensor) -> Tensor:
        n = len(patches)
        maps = before(patches.flatten(0, 1)).unflatten(0, (n, 4))
        features = [after(stitch(maps, way).flatten(0, 1)).unflatten(0, (n, 2)) for way in directions]
        return torch.cat(features, 1)  # (n, E, width)

    return in_microbatches(backbone, encode, patches).flatten(0, 1)


def cut(images: Tensor, grid: int) -> Tensor:
    """(N, C, H, W) to (N G^2, C, H / G, W / G), image-major; the patches of an image column by column."""
    n, c, h, w = images.shape
    assert h % grid == w % grid == 0, f"{h} x {w} images in a grid of {grid}"
    x = images.view(n, c, grid, h // grid, grid, w // grid)
    return x.permute(0, 4, 2, 1, 3, 5).reshape(n * grid**2, c, h // grid, w // grid)


def combine(embeddings: Tensor, chosen: list[tuple[int, ...]]) -> Tensor:
    """(N, G^2, D) to (N, E, D): the mean of each combination of patches."""
    return embeddings[:, to_device(torch.tensor(chosen), embeddings.device)].mean(2)


def stitch(maps: Tensor, direction: str) -> Tensor:
    """(N, 4, C, H, W) to (N, 2, C, 2H, W) or (N, 2, C, H, 2W): neighbours joined as in the image."""
    side = 2 if direction == "vertical" else 3
    return torch.stack([torch.cat([maps[:, a], maps[:, b]], side) for a, b in ADJACENT[direction]], 1)


def _directions(config: Combine, generator: torch.Generator) -> list[str]:
    if config.pairs == "adjacent":
        return list(ADJACENT)
    return [list(ADJACENT)[int(torch.randint(2, (), generator=generator))]]


def _combinations(config: Combine, generator: torch.Generator) -> list[tuple[int, ...]]:
    if config.pairs == "all":
        return list(combinations(range(config.grid**2), config.choose))
    return [pair for direction in _directions(config, generator) for pair in ADJACENT[direction]]
