"""The parameters of a network by depth, for layer-wise learning rates and frozen layers."""

from torch import nn

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
