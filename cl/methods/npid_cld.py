"""NPID + CLD: images told apart with a memory bank, and groups of images told apart between views."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from cl.methods import Setup
from cl.methods._shared import cld
from cl.methods._shared.instance_discrimination import InstanceDiscrimination, InstanceDiscriminationConfig
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast
from cl.objective.traits import Traits


class Config(InstanceDiscriminationConfig):
    """`group`: CLD's loss between groups."""

    gives: ClassVar[Traits] = {"contrasts"}  # the group loss has no normalizer
    kind: Literal["npid_cld"]
    group: cld.Grouping

    @model_validator(mode="after")
    def _two_heads(self) -> Self:
        cld.check_projector(self.projector)
        return self

    def check(self, batch_size: int, epochs: float) -> None:
        """The batch must be divisible into the parts that are clustered."""
        self.group.check(batch_size)


class Method(InstanceDiscrimination):
    """Wang et al. 2021, eq. 4, on NPID: the mean over the views, plus lambda times the group loss."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.group = config.group
        self.group_head = cld.group_head(config.projector, self.projector)

    def forward(self, batch: Batch) -> list[Contrast]:
        """The contrasts of NPID, and two between the first two views and each other's groups."""
        encode = cld.two_heads(self.backbone, self.projector, self.group_head)
        both = in_passes(encode, batch.views, separate=2)  # (N, 2, D) each
        instances = self.discriminate([x[:, 0] for x in both], batch)
        return instances + cld.group_contrasts(both[0][:, 1], both[1][:, 1], self.group, len(instances))
