"""SiMo: MoCo without a queue; the negatives are momentum keys of the other images in the batch."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from cl.methods import BaseMethod, MethodConfig
from cl.methods._shared.negatives import check_negatives, sample_columns
from cl.networks.passes import in_passes
from cl.networks.target import Ema, Target
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast, of_same_value
from cl.runtime.distributed import gather
from cl.runtime.machine import to_device


class Config(MethodConfig):
    """`shuffle`: ShuffleBN instead of synchronised batch norm (EqCo, Table 4).

    negatives: the number of keys that a query is contrasted with; null: the keys of all other images.
    sampling: `shared`: negatives are sampled once per step for all queries, as in the authors' code;
        `per_query`: for each query; null if `negatives` is null.
    """

    gives: ClassVar = {"contrasts", "columns"}
    kind: Literal["simo"]
    ema: Ema
    shuffle: bool
    negatives: int | None = Field(gt=0)
    sampling: Literal["shared", "per_query"] | None

    @model_validator(mode="after")
    def _sampling_with_negatives(self) -> "Config":
        if (self.negatives is None) != (self.sampling is None):
            raise ValueError(f"negatives={self.negatives} with sampling={self.sampling}: give both, or null")
        return self

    def check(self, batch_size: int, epochs: float) -> None:
        check_negatives(self.negatives, batch_size - 1)


class Method(BaseMethod):
    """SiMo (EqCo, section 3): the first view is the query, the second the key; small views are queries."""

    config: Config
    target: Target

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N queries with the keys of the batch for each query view."""
        views = batch.views
        order = self.shuffled(len(views[1]), "keys") if self.config.shuffle else None
        keys = self.target.embed(views[1], order)  # (N, D)
        queries = in_passes(self.embed, [views[0], *views[2:]], separate=1)  # (N, D) each
        if self.config.negatives is None:
            return [self.contrast_in_batch(q[:, None], keys, batch) for q in queries]
        draws, shared = self.generator("negatives"), self.config.sampling == "shared"
        columns = sample_columns(len(keys), self.config.negatives, draws, width=1, shared=shared)
        negatives = Negatives.of_other_images(gather(keys), batch, to_device(columns, keys.device))
        others = of_same_value(keys[:, None], batch)
        return [self.contrast(q, keys[:, None], negatives, others=others) for q in queries]
