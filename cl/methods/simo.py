"""SiMo: MoCo without a queue; the negatives are momentum keys of the other images in the batch."""

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from cl.contrast import Contrast
from cl.methods import (
    BaseMethod,
    Ema,
    MethodConfig,
    Setup,
    Target,
    contrast_in_batch,
    in_passes,
    sample_without_replacement,
    skip_own_columns,
)
from cl.runtime.distributed import gather, global_rows, ranks
from cl.runtime.machine import to_device


class Config(MethodConfig):
    """`shuffle`: ShuffleBN instead of synchronised batch norm (EqCo, Table 4).

    negatives: keys that a query meets; null: those of all other images. They are drawn once a step for all queries
    (`sampling: shared`, as the authors' code does) or for each query (`per_query`).
    """

    gives_negatives: ClassVar[bool] = True
    kind: Literal["simo"]
    ema: Ema
    shuffle: bool
    negatives: int | None = Field(gt=0)
    sampling: Literal["shared", "per_query"] | None

    @model_validator(mode="after")
    def _sampling_with_negatives(self) -> "Config":
        if (self.negatives is None) != (self.sampling is None):
            raise ValueError(
                f"negatives={self.negatives} with sampling={self.sampling}: sampling is shared or per_query, or null without"
            )
        return self

    def candidates(self, batch_size: int) -> int | None:
        """N - 1."""
        return batch_size - 1


class Method(BaseMethod):
    """SiMo (EqCo, section 3): the first view is the query, the second the key; further small views are queries too."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.config = config
        self.target = Target(self, config.ema)

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """Views (N, 3, H, W); a contrast of N queries with the keys of the batch for each query view."""
        queries = in_passes(self.embed, [views[0], *views[2:]], separate=1)  # (N, D) each
        order = self.shuffled(len(views[1]), "keys") if self.config.shuffle else None
        keys = self.target.embed(views[1], order)  # (N, D)
        selected = self._draw(len(keys))
        if selected is None:
            return [contrast_in_batch(q[:, None], keys, self.temperature) for q in queries]
        selected, pool = to_device(selected, keys.device), gather(keys)
        return [
            Contrast(q, keys[:, None], pool, selected=selected, temperature=self.temperature) for q in queries
        ]

    def after_step(self, progress: float) -> None:
        """Move the target encoder."""
        self.target.follow(self, progress)

    def _draw(self, n: int) -> Tensor | None:
        """(N, K): the columns that each query meets. Shared: the same K places among the N - 1 others of each query."""
        if self.config.negatives is None:
            return None
        others, generator = n * ranks() - 1, self.generator("negatives")
        count = min(self.config.negatives, others)
        if self.config.sampling == "shared":
            places = torch.randperm(others, generator=generator)[:count].expand(n, count)
        else:
            places = sample_without_replacement(n, others, count, generator)
        return skip_own_columns(places, global_rows(n))
