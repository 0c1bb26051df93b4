"""MoCo v1 and v2: queries against a queue of keys from a slowly moving target encoder."""

import copy
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torchvision.models.resnet import ResNet

from cl.contrast import Contrast
from cl.methods import Framework, MethodConfig, unit


class Config(MethodConfig):
    """`shuffle`: ShuffleBN between the groups of batch norm; `momentum` of the target encoder; `scale` of the loss."""

    gives_negatives: ClassVar[bool] = True
    kind: Literal["moco"]
    queue: int = Field(gt=0, description="keys")
    momentum: float = Field(ge=0, lt=1)
    shuffle: bool


class Method(Framework):
    """Algorithm 1 of MoCo: the first view is the query, the second the key."""

    queue: Tensor
    oldest: Tensor

    def __init__(self, config: Config, backbone: ResNet, temperature: float, *, bn_groups: int, seed: int) -> None:
        super().__init__(backbone, config.projector, bn_groups=bn_groups, seed=seed)
        self.temperature, self.momentum, self.shuffle = temperature, config.momentum, config.shuffle
        self.target = nn.Sequential(copy.deepcopy(self.backbone), copy.deepcopy(self.projector)).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(config.queue, config.projector.out), dim=1))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.int64))
        self._keys: Tensor | None = None

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """Two views (N, 3, H, W); one contrast of N queries with the whole queue as negatives."""
        queries = self.embed(views[0])  # (N, D)
        self._keys = self._encode_keys(views[1])
        return [Contrast(queries, self._keys[:, None], self.queue, temperature=self.temperature)]

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Move the target encoder, then replace the oldest keys of the queue by this step's.

        The target moves before the next keys are computed, as in the paper; batch statistics are its own.
        """
        online = [*self.backbone.parameters(), *self.projector.parameters()]
        torch._foreach_lerp_(list(self.target.parameters()), online, 1 - self.momentum)
        assert self._keys is not None
        self._enqueue(self._keys)

    @torch.no_grad()
    def _encode_keys(self, images: Tensor) -> Tensor:
        if not self.shuffle or self.bn_groups == 1:
            return unit(self.target(images))
        order = torch.randperm(len(images), generator=self.generator()).to(images.device)
        keys = torch.empty_like(unshuffled := unit(self.target(images[order])))
        keys[order] = unshuffled
        return keys

    def _enqueue(self, keys: Tensor) -> None:
        """A ring: any number of keys, with wrap-around; of more keys than fit the last ones stay."""
        size = len(self.queue)
        start = self.oldest + max(0, len(keys) - size)
        keys = keys[-size:]
        self.queue[(start + torch.arange(len(keys), device=keys.device)) % size] = keys.to(self.queue.dtype)
        self.oldest.copy_((start + len(keys)) % size)
