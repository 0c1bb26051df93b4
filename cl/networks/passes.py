"""Forward passes: which views share batch statistics, features of places, microbatches, compiling."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cl.networks.batch_norm import GroupBatchNorm, recomputing

Encoder = Callable[[Tensor], Tensor]


def full_precision(x: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def l2_normalize(x: Tensor) -> Tensor:
    """Rows scaled to length 1, in full precision whatever the encoder's precision."""
    return F.normalize(full_precision(x), dim=-1)


def image_major(views: list[Tensor]) -> Tensor:
    """V views (N, 3, H, W) as one batch (N V, 3, H, W), channels-last; an image's views are adjacent."""
    if len(views) == 1:
        return views[0]
    return torch.stack([view.movedim(1, -1) for view in views], 1).flatten(0, 1).movedim(-1, 1)


def in_passes(encode: Encoder, views: list[Tensor], *, separate: int) -> list[Tensor]:
    """`encode` of each view; views that are encoded in one pass share batch statistics.

    Each of the first `separate` views has a separate pass; consecutive other views of one size share one.
    """
    encoded = [encode(view) for view in views[:separate]]
    for _, same_size in groupby(views[separate:], key=lambda view: view.shape[-1]):
        together = list(same_size)
        encoded += encode(image_major(together)).unflatten(0, (-1, len(together))).unbind(1)
    return encoded


def dense_features(network: Any, images: Tensor) -> Tensor:
    """The features that a network pools: (N, 3, H, W) to (N, H', W', D), row by row from the top left.

    They are those of `forward_features` in timm: a transformer's patches after its last norm, without other
    tokens, or a convolutional network's last map. Raises ValueError if the network has neither.
    """
    features: Any = network.forward_features(images) if hasattr(network, "forward_features") else None
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


def encoders(module: nn.Module) -> Iterator[nn.Module]:
    """Every backbone in a module; the networks inside a backbone are not listed."""
    for child in module.children():
        if hasattr(child, "fc_features"):
            yield child
        else:
            yield from encoders(child)


def encode_in_microbatches(module: nn.Module, microbatches: int) -> None:
    """Make every backbone in a module encode each training batch in this many parts.

    All other modules get the whole batch. Batch-norm groups must be set afterwards (`set_groups`), and a
    backbone's must fit in a microbatch.
    """
    if microbatches == 1:
        return
    for backbone in encoders(module):
        backbone.microbatches = microbatches  # type: ignore[assignment]
        backbone.forward = partial(in_microbatches, backbone, backbone.forward)


def in_microbatches(network: nn.Module, encode: Encoder, images: Tensor) -> Tensor:
    """`encode` of the images by the network, in training one microbatch at a time.

    The backward pass encodes each microbatch again, so the activations of only one exist at a time.
    """
    microbatches: int = getattr(network, "microbatches", 1) if network.training else 1
    if microbatches == 1:
        return encode(images)
    parts = images.chunk(microbatches)
    if not torch.is_grad_enabled():
        return torch.cat([encode(part) for part in parts])
    again = partial(checkpoint, encode, use_reentrant=False, context_fn=recomputing)
    return torch.cat([again(part) for part in parts])


def compile_forward(
    network: nn.Module, backend: str | Callable = "inductor", *, graphs: bool = False
) -> None:
    """Compile the forward pass of a network in place, into one graph for each kind of pass.

    Kinds differ in the size of images and in whether gradients are needed, not in what a network keeps
    between passes. Names of parameters and buffers stay.

    With `graphs`, a GPU starts all kernels at once. A CUDA graph reads parameters and buffers where they are,
    so all that changes them writes in place; the next step overwrites its outputs (`Task.captured`).
    """
    forward = torch.compile(network.forward, backend=backend, mode="reduce-overhead" if graphs else None)

    def run(images: Tensor) -> Tensor:
        result = forward(images)
        if graphs and not torch.is_grad_enabled():
            result = result.clone()
        if network.training:
            for norm in network.modules():
                if isinstance(norm, GroupBatchNorm):
                    norm.keep()
        return result

    network.forward = run
