"""MoCo + CLD: two queries against a key and a queue, and groups of images told apart between the queries."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from cl.methods import Setup
from cl.methods._shared import cld
from cl.methods._shared.queue_method import QueueMethod, QueueMethodConfig
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast

LARGE = 3  # two queries and the key


class Config(QueueMethodConfig):
    """`group`: CLD's loss between groups. Both queries have one key, which is enqueued once."""

    least_views: ClassVar[int] = LARGE
    kind: Literal["moco_cld"]
    group: cld.Grouping

    def large_views(self, views: int) -> int:
        """Two queries and their key."""
        return LARGE

    @model_validator(mode="after")
    def _two_heads(self) -> Self:
        cld.check_projector(self.projector)
        return self

    def check(self, batch_size: int, epochs: float) -> None:
        """The batch must be divisible into the parts that are clustered."""
        self.group.check(batch_size)


class Method(QueueMethod):
    """Wang et al. 2021, eq. 4, on MoCo: the mean over the queries, plus lambda times the group loss."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.group = config.group
        self.group_head = cld.group_head(config.projector, self.projector)

    def forward(self, batch: Batch) -> list[Contrast]:
        """The contrasts of MoCo for both queries, and two between the queries and each other's groups."""
        encode = cld.two_heads(self.backbone, self.projector, self.group_head)
        both = in_passes(encode, [*batch.views[:2], *batch.views[LARGE:]], separate=2)  # (N, 2, D) each
        keys = self.encode_keys([batch.views[2]], "keys")  # (N, 1, D)
        self.enqueue_after_step(keys, batch)
        instances = [self.against_queue(x[:, 0], keys, batch) for x in both]
        return instances + cld.group_contrasts(both[0][:, 1], both[1][:, 1], self.group, len(instances))
