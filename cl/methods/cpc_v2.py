"""CPC v2: from the rows of patches above, recognise a patch some rows below among all patches."""

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cl.methods import BaseMethod, MethodConfig, Setup
from cl.methods._shared.negatives import groups_of_queries
from cl.networks import context
from cl.networks.passes import full_precision
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives, gather_groups, paired
from cl.objective.terms import Contrast
from cl.runtime.distributed import gather, global_rows
from cl.runtime.machine import to_device


class Config(MethodConfig):
    """`projector` turns latents into targets; predictions are as wide.

    grid: patches per side of a view. patch: their side in pixels; null: neighbours overlap by half.
    offsets: distances to the targets, in rows. directions: the first is down, the others follow by quarter
        turns; each has a separate network.
    """

    least_views: ClassVar = 1
    large: ClassVar = 1  # each view is a separate grid
    kind: Literal["cpc_v2"]
    grid: int = Field(gt=1)
    patch: int | None = Field(gt=0)
    offsets: list[int] = Field(min_length=1)
    directions: int = Field(ge=1, le=4)
    context: context.Config

    def encoded_size(self, size: int) -> int:
        return context.patch_and_stride(size, self.grid, self.patch)[0]

    @model_validator(mode="after")
    def _targets_are_in_the_grid(self) -> Self:
        rows = [*range(1, self.grid)]
        if len(set(self.offsets) & set(rows)) < len(self.offsets):
            raise ValueError(f"offsets={self.offsets} must be distinct numbers from {rows}")
        return self


class Method(BaseMethod):
    """Henaff et al. 2019, appendix A.2, with the batch norm of the encoder instead of layer norm."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.grid, self.patch, self.offsets = config.grid, config.patch, config.offsets
        sizes = self.backbone.fc_features, config.projector.out, len(config.offsets), config.context
        self.predictors = nn.ModuleList(context.Predictor(*sizes) for _ in range(config.directions))

    def forward(self, batch: Batch) -> list[Contrast]:
        """One contrast for each view, direction and offset."""
        return [contrast for view in batch.views for contrast in self._contrasts(view, batch)]

    def _contrasts(self, view: Tensor, batch: Batch) -> list[Contrast]:
        latents, targets = self._encode(view)
        all_targets, result = gather(targets.flatten(0, 1)), []
        numbers = torch.arange(self.grid**2).view(self.grid, self.grid)
        for turns, predictor in enumerate(self.predictors):
            predictions = predictor(latents.rot90(turns, (2, 3)))  # (N, D, G, G) for each offset
            for k, prediction in zip(self.offsets, predictions, strict=True):
                below = numbers.rot90(turns)[k:].flatten()  # (G (G - k),)
                result.append(self._contrast(prediction[:, :, :-k], below, targets, all_targets, batch))
        return result

    def _encode(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Latents (N, F, G, G) and targets (N, G^2, D) of the patches, each encoded as an image."""
        cut = context.overlapping_patches(view, self.grid, self.patch)  # (N G^2, 3, P, P)
        features = self.backbone(cut)  # (N G^2, F)
        embeddings = self.projector(features)  # (N G^2, D)
        latents, targets = (full_precision(x).unflatten(0, (len(view), -1)) for x in (features, embeddings))
        return latents.mT.unflatten(2, (self.grid, self.grid)), targets

    def _contrast(
        self, predictions: Tensor, below: Tensor, targets: Tensor, all_targets: Tensor, batch: Batch
    ) -> Contrast:
        """The predictions (N, D, G - k, G) of the patches `below`, against all patches of all ranks."""
        positives = self.grid**2 * global_rows(len(targets))[:, None] + below  # (N, G (G - k))
        of_rows = gather_groups(batch.row_groups(self.grid**2))
        groups = paired(groups_of_queries(batch, len(below)), of_rows)
        negatives = Negatives(all_targets, excluded=positives.view(-1, 1), groups=groups, unit=False)
        return self.contrast(
            full_precision(predictions).permute(0, 2, 3, 1).flatten(0, 2),
            targets[:, to_device(below, targets.device)].flatten(0, 1)[:, None],
            negatives,
        )
