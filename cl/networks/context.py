"""Overlapping patches in a grid, and a network that summarises the rows of a grid so far (CPC v2)."""

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cl.runtime.base_config import BaseConfig


class Config(BaseConfig):
    """Residual `blocks` with `width` channels inside; `scale` multiplies the predictions."""

    blocks: int = Field(gt=0)
    width: int = Field(gt=0)
    scale: float = Field(gt=0)


def patch_and_stride(side: int, grid: int, patch: int | None) -> tuple[int, int]:
    """The side of a patch (None: neighbours overlap by half) and the distance to the next, edge to edge.

    Raises ValueError if the patches would not start at whole pixels.
    """
    if patch is None and side % (grid + 1):
        raise ValueError(
            f"grid={grid} needs views divisible by {grid + 1}, found {side} px; choose others, or a patch"
        )
    patch = patch or 2 * side // (grid + 1)
    stride, rest = divmod(side - patch, grid - 1)
    if stride <= 0 or rest:
        raise ValueError(
            f"patch={patch} in views of {side} px leaves {side - patch} px for the other "
            f"{grid - 1} patches of grid={grid}; it must leave a multiple of {grid - 1}"
        )
    return patch, stride


def overlapping_patches(images: Tensor, grid: int, patch: int | None = None) -> Tensor:
    """(N, C, S, S) to (N G^2, C, P, P), image-major: overlapping patches of each image, row by row."""
    size, stride = patch_and_stride(images.shape[-1], grid, patch)
    patches = images.unfold(2, size, stride).unfold(3, size, stride)  # (N, C, G, G, P, P)
    return patches.permute(0, 2, 3, 1, 4, 5).flatten(0, 2)


class MaskedContext(nn.Module):
    """A masked convolutional network: the output in a row depends on this row and the rows above it.

    Appendix A.2 of Henaff et al. 2019: residual blocks, and ReLU at the end.
    """

    def __init__(self, channels: int, config: Config) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(channels, config.width) for _ in range(config.blocks))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, rows, columns) to the same shape."""
        for block in self.blocks:
            x = x + block(x)
        return x.relu()


class Predictor(nn.Module):
    """A context network, and `count` linear predictions of `out` numbers from it at each position."""

    def __init__(self, channels: int, out: int, count: int, config: Config) -> None:
        super().__init__()
        self.context = MaskedContext(channels, config)
        self.predict = nn.Conv2d(channels, out * count, 1)
        self.count, self.scale = count, config.scale

    def forward(self, x: Tensor) -> list[Tensor]:
        """(N, C, rows, columns) to `count` times (N, out, rows, columns)."""
        return list((self.predict(self.context(x)) * self.scale).chunk(self.count, 1))


class _Block(nn.Module):
    """Mixes each position with its neighbours to the left and right, then each row with the row above."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(channels, width, 1)
        self.across = nn.Conv2d(width, width, (1, 3), padding=(0, 1))
        self.down = nn.Conv2d(width, width, (2, 1))
        self.widen = nn.Conv2d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.across(self.narrow(x).relu())
        x = self.down(F.pad(x, (0, 0, 1, 0)))  # a row of zeros on top
        return self.widen(x.relu())
