"""NPID + CLD: images told apart with a memory bank, and groups of images told apart between views."""

from typing import TYPE_CHECKING, ClassVar, Literal

from cl.methods import Setup
from cl.methods._shared import cld
from cl.methods._shared.instance_discrimination import InstanceDiscrimination, InstanceDiscriminationConfig
from cl.networks.passes import in_microbatches, in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast

if TYPE_CHECKING:
    from cl.config import Params


class Config(InstanceDiscriminationConfig):
    """`group`: CLD's loss between groups."""

    estimates_normalizer: ClassVar[bool] = False  # the group loss does not have one
    kind: Literal["npid_cld"]
    group: cld.Grouping

    def check(self, params: "Params") -> None:
        """The batch must be divisible into the parts that are clustered."""
        super().check(params)
        self.group.check(self, params)


class Method(InstanceDiscrimination):
    """Wang et al. 2021, eq. 4, on NPID: the mean over the views, plus lambda times the group loss."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.group = config.group
        self.group_head = cld.group_head(config.projector, self.projector)

    def forward(self, batch: Batch) -> list[Contrast]:
        """The contrasts of NPID, and two between the first two views and each other's groups."""
        encode = cld.two_heads(self.backbone, self.projector, self.group_head)
        both = in_passes(
            lambda view: in_microbatches(encode, view, self.microbatches), batch.views, separate=2
        )  # (N, 2, D) each
        instances = self.discriminate([x[:, 0] for x in both], batch)
        return instances + cld.group_contrasts(both[0][:, 1], both[1][:, 1], self.group, len(instances))
