"""ShuffleBN, which hides from a query which keys share its batch statistics (MoCo, section 3.3)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cl.config import Params


def check_shuffle(shuffle: bool, params: "Params") -> None:
    """Raises ValueError if `method.shuffle` would have no effect."""
    if shuffle and params.bn_groups == 1:
        raise ValueError(
            "method.shuffle=true shuffles between groups of batch norm, but "
            f"bn_group={params.bn_group} makes one group; choose a smaller bn_group or method.shuffle=false"
        )
