"""The target (momentum, key) encoder, a moving average of the online encoder."""

import copy
import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from cl.networks.passes import l2_normalize
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import permute, ranks


class Ema(BaseConfig):
    """The target encoder's momentum m, constant or 1 - (1 - m) (1 + cos(pi t)) / 2 (BYOL, section 3.2)."""

    momentum: float = Field(ge=0, lt=1)
    schedule: Literal["constant", "cosine"]

    def momentum_at(self, progress: float) -> float:
        """The momentum at `progress`, the fraction of steps done."""
        if self.schedule == "constant":
            return self.momentum
        return 1 - (1 - self.momentum) * (1 + math.cos(math.pi * progress)) / 2


class Target(nn.Sequential):
    """A copy of backbone and projector that follows them and is never trained.

    Methods run it before the online encoder, whose activations take memory until the backward pass.
    """

    def __init__(self, backbone: nn.Module, projector: nn.Module, ema: Ema) -> None:
        super().__init__(copy.deepcopy(backbone), copy.deepcopy(projector))
        self.requires_grad_(False)
        for module in self.modules():
            if hasattr(module, "drop_prob"):
                module.drop_prob = 0.0  # type: ignore[assignment]  # no stochastic depth in a target
        self.ema = ema

    @torch.no_grad()
    def embed(self, images: Tensor, order: Tensor | None = None) -> Tensor:
        """(N, 3, H, W) to unit rows (N, D) without gradient.

        `order`: (W N,), a permutation of all ranks' images for the pass (ShuffleBN).
        """
        if order is None:
            return l2_normalize(self(images))
        if ranks() > 1 and torch.is_autocast_enabled(images.device.type):
            images = images.to(torch.get_autocast_dtype(images.device.type))  # half as much to send
        mixed = permute(images.movedim(1, -1), order).movedim(-1, 1)
        return permute(self.embed(mixed), order.argsort())

    @torch.no_grad()
    def ema_update(self, backbone: nn.Module, projector: nn.Module, progress: float) -> None:
        """Set each parameter w' to m w' + (1 - m) w; the target keeps its running statistics."""
        online: list[Tensor] = [*backbone.parameters(), *projector.parameters()]
        torch._foreach_lerp_(list(self.parameters()), online, 1 - self.ema.momentum_at(progress))
