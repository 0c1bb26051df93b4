"""The intermediate features of an encoder, and classifiers of its maps."""

import inspect
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.training.tasks import classifier

# OpenSelfSup's multi_pooling.py: the sides of a ResNet's pooled maps; and of images of 224 px, the sides of
# the maps, and kernel, stride and padding.
POOLED = 12, 6, 4, 3, 2
SIDES = 112, 56, 28, 14, 7
WINDOWS = (10, 10, 4), (16, 8, 0), (13, 5, 0), (8, 3, 0), (6, 1, 0)


class LastBlocks(nn.Module):
    """The class tokens of a transformer's last blocks, after its final norm (DINO, appendix F.2).

    Raises:
        ValueError: the network has fewer such blocks.
    """

    def __init__(self, network: nn.Module, blocks: int) -> None:
        super().__init__()
        reader = getattr(network, "forward_intermediates", None)
        is_readable = reader is not None and "return_prefix_tokens" in inspect.signature(reader).parameters
        has_token = getattr(network, "cls_token", None) is not None
        found = len(network.blocks) if is_readable and has_token else 0  # type: ignore[arg-type]
        if found < blocks:
            raise ValueError(
                f"blocks={blocks} needs the class tokens of a transformer's last {blocks} blocks, found "
                f"{found} such blocks; choose blocks={found or 'null'}"
            )
        self.network, self.blocks = cast("Any", network), blocks
        self.fc_features = blocks * self.network.embed_dim

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, blocks width), in the order of the blocks."""
        _, tokens = zip(
            *self.network.forward_intermediates(
                images, indices=self.blocks, norm=True, return_prefix_tokens=True, intermediates_only=True
            ),
            strict=True,
        )
        return torch.cat([prefix[:, 0] for prefix in tokens], 1)


class PooledMaps(nn.Module):
    """A ResNet's maps after its first ReLU and each stage, pooled: of ResNet-50, to 9,000 values each."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.stages: list[Any] = [network.layer1, network.layer2, network.layer3, network.layer4]
        self.channels = [*(stage[0].conv1.in_channels for stage in self.stages), network.fc_features]
        self.sizes = [count * side**2 for count, side in zip(self.channels, POOLED, strict=True)]
        self.fc_features = sum(self.sizes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, sum of sizes)."""
        network = self.network
        maps = [network.relu(network.bn1(network.conv1(images)))]
        x = network.maxpool(maps[0])
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        if tuple(x.shape[-1] for x in maps) == SIDES:
            pooled = [F.avg_pool2d(x, *window) for x, window in zip(maps, WINDOWS, strict=True)]
        else:
            pooled = [F.adaptive_avg_pool2d(x, side) for x, side in zip(maps, POOLED, strict=True)]
        return torch.cat([x.flatten(1) for x in pooled], 1)

    def classifiers(self, classes: int) -> list[nn.Module]:
        """A classifier of each map."""
        starts = [sum(self.sizes[:number]) for number in range(len(self.sizes))]
        parts = zip(starts, self.channels, self.sizes, strict=True)
        return [MapClassifier(slice(start, start + size), count, classes) for start, count, size in parts]


class MapClassifier(nn.Module):
    """A linear classifier of a map whose channels are standardised, by batch norm without weight and bias.

    part: of the features (N, D) that belong to the map.
    """

    def __init__(self, part: slice, channels: int, classes: int) -> None:
        super().__init__()
        self.part, self.channels = part, channels
        self.norm: nn.Module = nn.BatchNorm1d(channels, affine=False)
        self.linear = classifier(part.stop - part.start, classes)

    def forward(self, features: Tensor) -> Tensor:
        """(N, D) to (N, classes)."""
        values = features[:, self.part].unflatten(1, (self.channels, -1))
        logits: Tensor = self.linear(self.norm(values).flatten(1))
        return logits
