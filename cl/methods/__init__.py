"""Methods, one file each: a pydantic `Config` and an `nn.Module` named `Method`."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from cl.networks import heads, patches
from cl.networks.passes import in_microbatches, l2_normalize
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives
from cl.objective.ring import of_all_ranks
from cl.objective.terms import Contrast, Term
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import ranks

if TYPE_CHECKING:
    from cl.config import Params
    from cl.networks.backbones import Backbone


class MethodConfig(BaseConfig):
    """The parameters that every method has.

    scale: multiplies the loss.
    gives: the type of the method's terms, which a loss must take (`LossConfig.takes`).
    only_decoupled: whether it takes only losses without the positive among the candidates.
    estimates_normalizer: whether the terms have a `log_normalizer`, as those of a memory bank do.
    has_predictor: whether `optim.predictor_lr` has something to act on, the attribute `predictor`.
    takes_patches: whether it encodes combinatorial patches.
    several_positives: how to choose this method with several positives per query; None where it has only one.
    least_views: how many views per image it needs.
    two_streams: whether it needs a backbone of two networks.
    queues_negatives: whether its negatives are a queue of earlier keys.
    evaluated: the names of its modules that are evaluated, a backbone and its projector.
    """

    gives: ClassVar[type[Term]]
    only_decoupled: ClassVar[bool] = False
    estimates_normalizer: ClassVar[bool] = False
    has_predictor: ClassVar[bool] = False
    takes_patches: ClassVar[bool] = False
    several_positives: ClassVar[str | None] = None
    least_views: ClassVar[int] = 2
    two_streams: ClassVar[bool] = False
    queues_negatives: ClassVar[bool] = False
    evaluated: ClassVar[tuple[str, str]] = ("backbone", "projector")
    kind: str
    projector: heads.Config
    scale: float = Field(gt=0)

    @property
    def embedding_width(self) -> int:
        """The length of the projector's embeddings."""
        return self.projector.out

    def build_projector(self, features: int) -> nn.Sequential:
        """The projector of a backbone that gives this many features."""
        return heads.build(self.projector, features)

    def encoded_size(self, size: int) -> int:
        """The side in pixels of what the backbone sees of a view of this side."""
        return size

    def large_views(self, views: int) -> int:
        """How many of an image's `views` are large, each with its own role; the rest are small crops."""
        return 2

    def positives(self, views: int) -> int:
        """How many positives a query has."""
        return 1

    def check(self, params: "Params") -> None:
        """Check the other parameters against the method's own rules.

        Raises:
            ValueError: they do not fit together.
        """
        if params.optim.predictor_lr == "fixed" and not self.has_predictor:
            raise ValueError(
                f"optim.predictor_lr=fixed, but method={self.kind} has no predictor; choose scheduled"
            )


@dataclass(frozen=True)
class Setup:
    """What a method is built from, besides its own parameters.

    temperature: None where the method's terms have none.
    bn_groups, microbatches: of the batch of all ranks; the task that trains the method applies them.
    images: in the training split.
    """

    backbone: "Backbone"
    temperature: float | None
    patches: patches.Config
    bn_groups: int
    seed: int
    images: int
    microbatches: int = 1


class BaseMethod(nn.Module):
    """What every method has: the encoder that is evaluated, and the number of the step.

    A method turns a batch into terms (`forward`) and updates its own state after the optimizer's step
    (`after_step`). It has no hidden random state: random numbers come from `self.generator(purpose)`.
    """

    step = 0  # set by the training task before `forward`

    def __init__(self, config: MethodConfig, setup: Setup) -> None:
        super().__init__()
        self.seed, self.bn_groups, self.microbatches = setup.seed, setup.bn_groups, setup.microbatches
        self.temperature = setup.temperature
        self.backbone = setup.backbone
        self.projector = config.build_projector(self.backbone.fc_features)
        self.sizes: dict[str, int] = {}
        self._evaluated = config.evaluated

    @property
    def evaluated(self) -> "tuple[Backbone, nn.Module]":
        """The backbone and the projector that are evaluated."""
        backbone, projector = map(self.get_submodule, self._evaluated)
        return cast("Backbone", backbone), projector

    def embed(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to unit rows (N, D)."""
        return in_microbatches(
            lambda part: l2_normalize(self.projector(self.backbone(part))), images, self.microbatches
        )

    def begin_epoch(self, epoch: int) -> None:
        """Called before the forward pass of an epoch's first step; epochs count from 0.

        It is not called when a run resumes within an epoch, so what it computes must be in buffers.
        """

    def after_step(self, progress: float) -> None:
        """Called after the optimizer's step; `progress` in (0, 1] is the fraction of steps done."""

    def contrast(
        self, queries: Tensor, positives: Tensor, negatives: Negatives, log_normalizer: Tensor | None = None
    ) -> Contrast:
        """A contrast at the method's temperature; the arguments are fields of `Contrast`."""
        assert self.temperature is not None, "cl.config requires one"
        return Contrast(queries, positives, negatives, self.temperature, log_normalizer=log_normalizer)

    def contrast_in_batch(self, queries: Tensor, keys: Tensor, batch: Batch) -> Contrast:
        """Queries against all ranks' keys; the key of the query's own image is the positive.

        Args:
            queries: (N, E, D), E per image.
            keys: (N, D).
        """
        e = queries.shape[1]
        negatives = Negatives.of_other_images(of_all_ranks(keys), batch, queries=e)
        return self.contrast(queries.flatten(0, 1), keys.repeat_interleave(e, 0)[:, None], negatives)

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers on the CPU that depend only on (seed, step, purpose); every purpose has its own."""
        digest = hashlib.sha256(f"{self.seed} {self.step} {purpose}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7]))

    def shuffled(self, images: int, purpose: str) -> Tensor | None:
        """A permutation for ShuffleBN of the images that all ranks encode in a pass, on the CPU.

        Args:
            images: how many this rank has.

        Returns:
            (W images,), or None where batch norm has only one group.
        """
        if self.bn_groups == 1:
            return None
        return torch.randperm(images * ranks(), generator=self.generator(purpose))
