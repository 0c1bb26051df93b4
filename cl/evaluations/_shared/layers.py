"""The intermediate features of an encoder."""

import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn


class LastBlocks(nn.Module):
    """The class tokens of a transformer's last blocks, after its final norm (DINO, appendix F.2)."""

    def __init__(self, network: nn.Module, blocks: int) -> None:
        super().__init__()
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


def last_blocks(network: nn.Module, blocks: int) -> LastBlocks:
    """The network with the class tokens of its last blocks as features; raises ValueError without them."""
    reader = getattr(network, "forward_intermediates", None)
    is_readable = reader is not None and "return_prefix_tokens" in inspect.signature(reader).parameters
    has_token = getattr(network, "cls_token", None) is not None
    found = len(network.blocks) if is_readable and has_token else 0  # type: ignore[arg-type]
    if found < blocks:
        raise ValueError(
            f"blocks={blocks} needs the class tokens of a transformer's last {blocks} blocks, found "
            f"{found} such blocks; choose blocks={found or 'null'}"
        )
    return LastBlocks(network, blocks)
