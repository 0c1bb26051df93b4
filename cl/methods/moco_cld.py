"""MoCo + CLD: two queries against a key and a queue, and against the clusters of each other's embeddings."""

from typing import ClassVar, Literal

from cl.methods._shared.cld import ClusterConfig, ClusterMethod
from cl.methods._shared.queue_method import TargetQueueConfig, TargetQueueMethod
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class Config(ClusterConfig, TargetQueueConfig):
    """Both queries share a key, which is enqueued once."""

    least_views: ClassVar = 3
    large: ClassVar = 3  # two queries and their key
    kind: Literal["moco_cld"]


class Method(ClusterMethod, TargetQueueMethod):
    """Wang et al. 2021, eq. 4, on MoCo: the mean over the queries, plus lambda times the clusters' loss."""

    def forward(self, batch: Batch) -> list[Contrast]:
        """The contrasts of MoCo for both queries, and two between the queries and each other's clusters."""
        keys = self.encode_keys([batch.views[2]], "keys")  # (N, 1, D)
        queries = [*batch.views[:2], *batch.views[3:]]
        both = in_passes(self.embed_twice, queries, separate=2)  # (N, 2, D) each
        self.enqueue_after_step(keys, batch)
        instances = [self.against_queue(x[:, 0], keys, batch) for x in both]
        return self.with_clusters(instances, both)
