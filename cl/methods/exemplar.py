"""Exemplar: a classifier in which every training image is a class with a row of weights."""

from typing import ClassVar, Literal

import torch
from torch import nn

from cl.methods import BaseMethod, MethodConfig, Setup
from cl.networks.passes import in_passes
from cl.networks.queue import NO_GROUP
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives, paired
from cl.objective.terms import Contrast
from cl.runtime.distributed import gather


class Config(MethodConfig):
    """No further parameters: the width of `projector` is also the classifier's."""

    least_views: ClassVar = 1
    large: ClassVar = 1  # each view is classified by itself, so views may have any sizes
    kind: Literal["exemplar"]


class Method(BaseMethod):
    """The parametric softmax of Wu et al. 2018, eq. 1: the logits of an image are W z / temperature.

    z is an embedding of length 1; the rows of W are trained and have any length. With InfoNCE, the loss is
    the cross-entropy with the image's position as its class.

    weights: W, (n, D), a row for every image.
    groups: (n,) int64, as in `Batch.row_groups`, of the images that have been in a batch.
    """

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        width = config.projector.out
        self.weights = nn.Parameter(torch.randn(setup.images, width) / width**0.5)
        self.groups = nn.Buffer(torch.full((setup.images,), NO_GROUP))

    def forward(self, batch: Batch) -> list[Contrast]:
        """One contrast per view, of N queries with n - 1 negatives each."""
        queries = in_passes(self.embed, batch.views, separate=0)  # V x (N, D)
        classes, groups = batch.positions[:, None], batch.row_groups()
        if groups is not None:
            self.groups[gather(batch.positions)] = gather(groups)
        pair = paired(groups, self.groups)
        negatives = Negatives(self.weights, excluded=classes, groups=pair, unit=False)
        return [self.contrast(q, self.weights[classes], negatives) for q in queries]
