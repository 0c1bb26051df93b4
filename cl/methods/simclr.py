"""SimCLR: both views of every image against all other views in the batch."""

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torchvision.models.resnet import ResNet

from cl.contrast import Contrast
from cl.methods import Framework, MethodConfig


class Config(MethodConfig):
    """`scale` multiplies the loss: 1 is the mean over the 2N anchors, 2 the sum over the two views."""

    gives_negatives: ClassVar[bool] = True
    kind: Literal["simclr"]


class Method(Framework):
    """Algorithm 1 of SimCLR."""

    def __init__(self, config: Config, backbone: ResNet, temperature: float, *, bn_groups: int, seed: int) -> None:
        super().__init__(backbone, config.projector, bn_groups=bn_groups, seed=seed)
        self.temperature = temperature

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """Two views (N, 3, H, W), encoded in one pass; one contrast of 2N queries with 2(N - 1) negatives each."""
        images = torch.stack(views, 1).flatten(0, 1)  # (2N, 3, H, W), rows image-major: i's views are 2i and 2i + 1
        embeddings = self.embed(images)  # (2N, D)
        itself = torch.arange(len(embeddings), device=embeddings.device)
        other = itself ^ 1
        return [
            Contrast(
                queries=embeddings,
                positives=embeddings[other, None],
                negatives=embeddings,
                excluded=torch.stack([itself, other], 1),
                temperature=self.temperature,
            )
        ]
