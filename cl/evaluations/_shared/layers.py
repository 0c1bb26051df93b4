"""The layers of an encoder: for layer-wise learning rates and intermediate features."""

import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn

STREAM = r"^(?:networks\.\d\.)?"
RESIDUAL = {
    "stem": rf"{STREAM}(?:conv1|bn1)\.",
    "blocks": rf"{STREAM}layer(\d+)\.(\d+)\.",
}  # torchvision's names


def parameters_by_depth(network: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of the stem and of each block; a final norm belongs to the last block.

    A timm network is divided as timm's own layer-wise decay divides it.
    """
    from timm.models import group_parameters  # late: it takes seconds to import

    matcher = network.group_matcher(coarse=False) if hasattr(network, "group_matcher") else RESIDUAL  # type: ignore[operator]
    groups = group_parameters(network, matcher)
    named = dict(network.named_parameters())
    return [[named[name] for name in names] for _, names in sorted(groups.items())]


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
    """The network with the class tokens of its last blocks as features.

    Raises:
        ValueError: the network lacks a class token, or has fewer blocks.
    """
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
