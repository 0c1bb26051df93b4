"""MoCo v1 and v2: queries against a queue of keys from a slowly moving target encoder."""

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from cl.contrast import Contrast
from cl.methods import BaseMethod, Ema, MethodConfig, Queue, Setup, Target, image_major, in_passes
from cl.runtime.distributed import gather


class Config(MethodConfig):
    """`queue` of so many keys; `shuffle`: ShuffleBN between the groups of batch norm.

    keys: the key of an image is its second view; or all views after the first are its keys (JCL), whose mean is queued.
    symmetric: the first view's keys are contrasted and queued too.
    """

    gives_negatives: ClassVar[bool] = True
    kind: Literal["moco"]
    queue: int = Field(gt=0, description="keys")
    ema: Ema
    shuffle: bool
    keys: Literal["second", "rest"]
    symmetric: bool

    @model_validator(mode="after")
    def _one_key_each_way(self) -> "Config":
        if self.symmetric and self.keys == "rest":
            raise ValueError(
                "symmetric=true swaps a query and its key, keys=rest has several; choose keys=second or symmetric=false"
            )
        return self

    def large_views(self, views: int) -> int:
        """One query and its keys."""
        return views if self.keys == "rest" else 2

    def positives(self, views: int) -> int:
        """M' in the notation of JCL."""
        return views - 1 if self.keys == "rest" else 1


class Method(BaseMethod):
    """Algorithm 1 of MoCo: the first view is the query, the second the key; further small views are queries too."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.config = config
        self.target = Target(self, config.ema)
        self.queue = Queue(config.queue, config.projector.out)
        self._keys: list[Tensor] = []

    def forward(self, views: list[Tensor]) -> list[Contrast]:
        """Views (N, 3, H, W); a contrast of N queries with the whole queue as negatives for each query view and key."""
        large = self.config.large_views(len(views))
        key_views = [range(1, large), range(1)] if self.config.symmetric else [range(1, large)]
        query_views = [v for v in range(len(views)) if v < len(key_views) or v >= large]
        encoded = in_passes(self.embed, [views[v] for v in query_views], separate=len(key_views))
        queries = dict(zip(query_views, encoded, strict=True))  # (N, D) by view
        keys = [
            self._encode_keys([views[v] for v in group], f"keys {group[0]}") for group in key_views
        ]  # (N, P, D)
        self._keys = [k.mean(1) for k in keys]
        return [
            Contrast(q, k, self.queue.rows, temperature=self.temperature)
            for group, k in zip(key_views, keys, strict=True)
            for view, q in queries.items()
            if view not in group
        ]

    def after_step(self, progress: float) -> None:
        """Move the target encoder, then replace the oldest keys of the queue by this step's.

        The target moves before the next keys are computed, as in the paper; batch statistics are its own.
        """
        self.target.follow(self, progress)
        self.queue.enqueue(torch.cat([gather(keys) for keys in self._keys]), self.generator("queue"))

    def _encode_keys(self, views: list[Tensor], purpose: str) -> Tensor:
        """P views of N images in one pass to (N, P, D)."""
        images = image_major(views)
        order = self.shuffled(len(images), purpose) if self.config.shuffle else None
        return self.target.embed(images, order).unflatten(0, (-1, len(views)))
