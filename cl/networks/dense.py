"""Dense features: a vector for each place of an image instead of one for all."""

import math
from typing import Any

from torch import Tensor

from cl.networks.backbones import Backbone


def dense_features(network: Backbone, images: Tensor) -> Tensor:
    """The features that a network pools: (N, 3, H, W) to (N, H', W', D), row by row from the top left.

    They are those of `forward_features` in timm: a transformer's patches after its last norm, without other
    tokens, or a convolutional network's last map. Raises ValueError if the network has neither.
    """
    timm_network: Any = network  # or our own residual network
    features: Any = timm_network.forward_features(images) if hasattr(network, "forward_features") else None
    shape = tuple(getattr(features, "shape", ()))
    if len(shape) == 4:
        is_last = getattr(network, "output_fmt", "NCHW") == "NHWC"  # the width
        return features if is_last else features.permute(0, 2, 3, 1)
    if len(shape) == 3:
        rows, columns = images.shape[2:]
        others = getattr(network, "num_prefix_tokens", shape[1] - math.isqrt(shape[1]) ** 2)
        patches = shape[1] - others  # in a grid of the images' ratio
        height = max(1, round(math.sqrt(patches * rows / columns)))
        if patches % height == 0:
            return features[:, others:].unflatten(1, (height, -1))
    raise ValueError(
        f"{type(network).__name__} gives no map and no grid of patches for {images.shape[2]} x "
        f"{images.shape[3]} px; choose a transformer or a residual network"
    )
