"""Methods, one file each: a pydantic `Config` and an `nn.Module` named `Method`."""

import hashlib
from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from cl.networks import backbones, heads, patches
from cl.networks.passes import l2_normalize
from cl.networks.target import Ema, Target
from cl.networks.teacher import Teacher
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast, of_same_value
from cl.objective.traits import Traits
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import gather, ranks


def pairs(views: int) -> list[tuple[int, int]]:
    """(a, b) for each of two target views b and every other view a: 2 (V - 1) pairs."""
    return [(a, b) for b in range(2) for a in range(views) if a != b]


class MethodConfig(BaseConfig):
    """The parameters that every method has.

    scale: multiplies the loss.
    gives: the traits of its terms and of the method itself, which a loss may need (`cl.objective.traits`);
        contrasts, unless a method says otherwise.
    needs: the traits that a loss must give.
    needs_backbone: the traits that a backbone must give.
    least_views: the smallest number of views per image.
    large: how many of an image's views are large, each with a different role; the rest are small crops.
    jigsaw: the number of jigsaw patches that must follow the large views, without other views; 0: any views.
    evaluated: the names of the modules that are evaluated, a backbone and its projector.
    """

    gives: ClassVar[Traits] = {"contrasts"}
    needs: ClassVar[Traits] = frozenset()
    needs_backbone: ClassVar[Set[backbones.Trait]] = frozenset()
    least_views: ClassVar[int] = 2
    large: ClassVar[int] = 2
    jigsaw: ClassVar[int] = 0
    evaluated: ClassVar[tuple[str, str]] = ("backbone", "projector")
    kind: str
    projector: heads.Config
    scale: float = Field(gt=0)

    @property
    def embedding_width(self) -> int:
        """The length of the projector's embeddings."""
        return self.projector.out

    def build_projector(self, features: int) -> nn.Sequential:
        """The projector for a backbone with this many features."""
        return heads.build(self.projector, features)

    def encoded_size(self, size: int) -> int:
        """The side in pixels of the images that the backbone gets from a view of this side.

        Raises ValueError, which begins with a parameter's name, if the method cannot use such views.
        """
        return size

    def large_views(self, views: int) -> int:
        """How many of an image's `views` are large, if that depends on their number."""
        return self.large

    def positives(self, views: int) -> int:
        """How many positives a query has."""
        return 1

    def check(self, batch_size: int, epochs: float) -> None:
        """Raises ValueError, which begins with a parameter's name, if they do not fit the training run."""


@dataclass(frozen=True)
class Setup:
    """What a method is built from, besides its parameters.

    temperature: None if the method's terms have no temperature.
    bn_groups: batch-norm groups in the batch of all ranks; the task that trains the method applies them.
    images: the number of images in the training split.
    within: whether only images of one value are negatives of each other.
    teacher: of distillation.
    """

    backbone: backbones.Backbone
    temperature: float | None
    patches: patches.Config
    bn_groups: int
    seed: int
    images: int
    within: bool = False
    teacher: Teacher | None = None


class BaseMethod(nn.Module):
    """The base of every method: turns a batch into terms (`forward`).

    It updates its state after the optimizer's step (`after_step`). Random numbers come from
    `self.generator(purpose)`, so there is no hidden random state.

    negatives_are_images: whether the negatives of its contrasts, if any, are embeddings of images.
    target: the target encoder, if the config has an `ema`.
    """

    negatives_are_images: ClassVar[bool] = True
    step = 0  # set by the training task before `forward`

    def __init__(self, config: MethodConfig, setup: Setup) -> None:
        super().__init__()
        self.config, self.seed, self.bn_groups = config, setup.seed, setup.bn_groups
        self.temperature = setup.temperature
        self.backbone = setup.backbone
        self.projector = config.build_projector(self.backbone.fc_features)
        ema: Ema | None = getattr(config, "ema", None)
        self.target = Target(self.backbone, self.projector, ema) if ema else None
        self.sizes: dict[str, int] = {}

    @property
    def evaluated(self) -> tuple[backbones.Backbone, nn.Module]:
        """The backbone and the projector that are evaluated."""
        backbone, projector = map(self.get_submodule, self.config.evaluated)
        return cast("backbones.Backbone", backbone), projector

    def embed(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to unit rows (N, D)."""
        return l2_normalize(self.projector(self.backbone(images)))

    def begin_epoch(self, epoch: int) -> None:
        """Called before an epoch's first step, from epoch 0; a resumed run needs its results in buffers."""

    def after_step(self, progress: float) -> None:
        """Called after the optimizer's step; `progress` in (0, 1] is the fraction of steps done."""
        if self.target:
            self.target.ema_update(self.backbone, self.projector, progress)

    def contrast(
        self,
        queries: Tensor,
        positives: Tensor,
        negatives: Negatives,
        log_normalizer: Tensor | None = None,
        others: tuple[Tensor, Tensor] | None = None,
    ) -> Contrast:
        """A contrast at the method's temperature; the arguments are fields of `Contrast`.

        others: further positives from `of_same_value`, and which of them count.
        """
        assert self.temperature is not None, "contrasts have a temperature"
        is_positive = None
        if others is not None:
            own = others[1].new_ones(positives.shape[:2])
            is_positive = torch.cat([own, others[1]], 1)
            positives = torch.cat([positives, others[0]], 1)
        return Contrast(
            queries,
            positives,
            negatives,
            self.temperature,
            log_normalizer=log_normalizer,
            is_positive=is_positive,
        )

    def contrast_in_batch(
        self, queries: Tensor, keys: Tensor, batch: Batch, all_keys: Tensor | None = None
    ) -> Contrast:
        """Queries (N, E, D) against all ranks' keys (N, D each); the key of a query's image is its positive.

        all_keys: those of all ranks, if they are gathered already.
        """
        e = queries.shape[1]
        rows = gather(keys) if all_keys is None else all_keys
        negatives = Negatives.of_other_images(rows, batch, queries=e)
        others = of_same_value(keys[:, None], batch, queries=e)
        positives = keys.repeat_interleave(e, 0)[:, None]
        return self.contrast(queries.flatten(0, 1), positives, negatives, others=others)

    def generator(self, purpose: str, later: int = 0) -> torch.Generator:
        """A generator on the CPU for this step, or `later` steps on; seeded by (seed, step, purpose)."""
        digest = hashlib.sha256(f"{self.seed} {self.step + later} {purpose}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7]))

    def shuffled(self, images: int, purpose: str) -> Tensor | None:
        """(W images,) on the CPU: ShuffleBN's permutation of all ranks' images; None for one group."""
        if self.bn_groups == 1:
            return None
        return torch.randperm(images * ranks(), generator=self.generator(purpose))
