"""The frozen teacher of distillation, encoded before training or in each step."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cl.networks.passes import l2_normalize


class StoredTeacher:
    """Unit features (images, D) of the whole training split, whatever view the student sees."""

    def __init__(self, features: Tensor) -> None:
        self.features = features

    def embed(self, images: Tensor, positions: Tensor) -> Tensor:
        """(N, D) unit rows without gradient, of a view (N, 3, S, S) of the images at `positions` (N,)."""
        return self.features[positions].to(images.dtype)


class SeeingTeacher:
    """A network that sees the student's views at its own size and in its own normalisation.

    network: in eval mode, on the device.
    size: side of its images in pixels.
    student, teacher: mean and standard deviation of RGB, (2, 3) each.
    """

    def __init__(self, network: nn.Module, size: int, student: Tensor, teacher: Tensor) -> None:
        self.network, self.size = network.requires_grad_(False), size
        (mean, std), (own_mean, own_std) = student[..., None, None], teacher[..., None, None]
        self.scale, self.shift = std / own_std, (mean - own_mean) / own_std

    @torch.no_grad()
    def embed(self, images: Tensor, positions: Tensor) -> Tensor:
        seen = images * self.scale + self.shift
        if images.shape[-1] != self.size:
            seen = F.interpolate(seen, size=(self.size, self.size), mode="bilinear", antialias=True)
        return l2_normalize(self.network(seen)).to(images.dtype)


Teacher = StoredTeacher | SeeingTeacher
