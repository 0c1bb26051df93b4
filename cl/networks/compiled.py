"""Networks run through torch.compile."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cl.networks.batch_norm import GroupBatchNorm


def compile_forward(network: nn.Module, backend: str | Callable = "inductor") -> None:
    """Compile the forward pass of a network in place, into one graph for each kind of pass.

    Kinds differ in the size of images and in whether gradients are needed, not in what a network keeps
    between passes. Names of parameters and buffers stay.
    """
    forward = torch.compile(network.forward, backend=backend)

    def run(images: Tensor) -> Tensor:
        result = forward(images)
        if network.training:
            for norm in network.modules():
                if isinstance(norm, GroupBatchNorm):
                    norm.keep()
        return result

    network.forward = run
