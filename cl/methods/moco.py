"""MoCo v1 and v2: queries against a queue of keys from a slowly moving target encoder."""

from typing import ClassVar, Literal

import torch
from pydantic import model_validator

from cl.methods import pairs
from cl.methods._shared.queue_method import TargetQueueConfig, TargetQueueMethod
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class Config(TargetQueueConfig):
    """How the views of an image become queries and keys.

    keys: an image's key is its second view (`second`); or all views after the first are its keys (`rest`,
        JCL), and their mean is enqueued.
    symmetric: the first view's keys are contrasted and enqueued too.
    """

    gives: ClassVar = {*TargetQueueConfig.gives, "several positives", "columns", "teacher"}
    kind: Literal["moco"]
    keys: Literal["second", "rest"]
    symmetric: bool

    @model_validator(mode="after")
    def _one_key_each_way(self) -> "Config":
        if self.symmetric and self.keys == "rest":
            raise ValueError("symmetric=true swaps query and key, but keys=rest gives several; choose second")
        return self

    def large_views(self, views: int) -> int:
        """One query and its keys."""
        return views if self.keys == "rest" else 2

    def positives(self, views: int) -> int:
        """M' in the notation of JCL."""
        return views - 1 if self.keys == "rest" else 1


class Method(TargetQueueMethod):
    """Algorithm 1 of MoCo: the first view is the query, the second the key; small views are queries too.

    After each step, `QueueMethod.after_step` moves the target encoder and enqueues the step's keys.
    """

    config: Config

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N queries with the whole queue as negatives for each query view and its keys."""
        if self.config.symmetric:
            return self._both_ways(batch)
        large = self.config.large_views(len(batch.views))
        keys = self.encode_keys(batch.views[1:large], "keys 1")  # (N, P, D)
        queries = in_passes(self.embed, [batch.views[0], *batch.views[large:]], separate=1)  # (N, D) each
        self.enqueue_after_step(keys.mean(1, keepdim=True), batch)
        return [self.against_queue(q, keys, batch) for q in queries]

    def _both_ways(self, batch: Batch) -> list[Contrast]:
        """The key of each of the first two views, with all other views as its queries."""
        keys = {view: self.encode_keys([batch.views[view]], f"keys {view}") for view in (1, 0)}  # (N, 1, D)
        queries = in_passes(self.embed, batch.views, separate=2)  # (N, D) each
        self.enqueue_after_step(torch.cat([keys[1], keys[0]], 1), batch)
        second_key_first = sorted(pairs(len(batch.views)), key=lambda pair: -pair[1])
        return [self.against_queue(queries[a], keys[b], batch) for a, b in second_key_first]
