"""Methods, one file each: a pydantic `Config` and an `nn.Module` named `Method`."""

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cl.contrast import Contrast
from cl.networks import heads, patches
from cl.networks.batch_norm import recomputing, set_groups
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import gather, global_rows, local_part, ranks
from cl.runtime.machine import to_device

if TYPE_CHECKING:
    from torchvision.models.resnet import ResNet

DRAWN = 2**22  # numbers drawn at a time for per-query negatives


class Ema(BaseConfig):
    """The target encoder's momentum, constant or rising to 1: m(t) = 1 - (1 - m) (1 + cos(pi t)) / 2 (BYOL, section 3.2)."""

    momentum: float = Field(ge=0, lt=1)
    schedule: Literal["constant", "cosine"]

    def at(self, progress: float) -> float:
        """The momentum when the fraction `progress` of all steps is done."""
        if self.schedule == "constant":
            return self.momentum
        return 1 - (1 - self.momentum) * (1 + math.cos(math.pi * progress)) / 2


class MethodConfig(BaseConfig):
    """What every method's parameters have: `scale` multiplies the loss."""

    gives_negatives: ClassVar[bool]
    takes_patches: ClassVar[bool] = False
    kind: str
    projector: heads.Config
    scale: float = Field(gt=0)

    def large_views(self, views: int) -> int:
        """How many of that many views play a role of their own and are of one size; the rest is multi-crop."""
        return 2

    def positives(self, views: int) -> int:
        """How many positives a query has."""
        return 1

    def candidates(self, batch_size: int) -> int | None:
        """Of how many negatives the parameter `negatives` chooses; None where there is no such choice."""
        return None


@dataclass(frozen=True)
class Setup:
    """What a method is built on, beside its own parameters; `bn_groups` and `microbatches` are of the batch of all ranks."""

    backbone: "ResNet"
    temperature: float | None
    patches: patches.Config
    bn_groups: int
    seed: int
    microbatches: int = 1


class BaseMethod(nn.Module):
    """What every method has: the encoder that is evaluated, and the number of the step.

    A method turns views into contrasts (`forward`) and looks after its own state once the optimizer has moved
    (`after_step`). It has no hidden random state: what it draws comes from `self.generator(purpose)`.
    """

    step = 0  # set by the training loop before `forward`

    def __init__(self, config: MethodConfig, setup: Setup) -> None:
        super().__init__()
        self.seed, self.bn_groups, self.microbatches = setup.seed, setup.bn_groups, setup.microbatches
        self.temperature = 1.0 if setup.temperature is None else setup.temperature
        self.backbone = setup.backbone
        self.projector = heads.build(config.projector, self.backbone.fc_features)
        for network in (self.backbone, self.projector):
            set_groups(network, self.bn_groups, self.microbatches)

    def embed(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to unit rows (N, D)."""
        return in_microbatches(
            lambda part: unit(self.projector(self.backbone(part))), images, self.microbatches
        )

    def after_step(self, progress: float) -> None:
        """Called after the optimizer's step; `progress` in (0, 1] is the fraction of steps done."""

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers on the host that depend on (seed, step, purpose) alone, other ones for each purpose."""
        digest = hashlib.sha256(f"{self.seed} {self.step} {purpose}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7]))

    def shuffled(self, images: int, purpose: str) -> Tensor | None:
        """A permutation of the images of a pass of all ranks, on the host, for ShuffleBN; None where there is but one group.

        Args:
            images: how many this rank has.
        """
        return (
            torch.randperm(images * ranks(), generator=self.generator(purpose))
            if self.bn_groups > 1
            else None
        )


class Target(nn.Sequential):
    """The target (momentum, key) encoder: a copy of backbone and projector that follows them and is never trained."""

    def __init__(self, method: BaseMethod, ema: Ema) -> None:
        super().__init__(copy.deepcopy(method.backbone), copy.deepcopy(method.projector))
        self.requires_grad_(False)
        self.ema, self.microbatches = ema, method.microbatches

    @torch.no_grad()
    def embed(self, images: Tensor, order: Tensor | None = None) -> Tensor:
        """(N, 3, H, W) to unit rows (N, D) without gradient.

        Args:
            order: in which the images of all ranks are encoded (ShuffleBN); None: as they come.
        """
        if order is None:
            return in_microbatches(lambda part: unit(self(part)), images, self.microbatches)
        order = to_device(order, images.device)
        shuffled = gather(self.embed(gather(images)[local_part(order)]))
        return local_part(torch.empty_like(shuffled).index_copy_(0, order, shuffled))

    @torch.no_grad()
    def follow(self, method: BaseMethod, progress: float) -> None:
        """Each parameter w' becomes m w' + (1 - m) w; batch norm's running statistics are the target's own."""
        online = [*method.backbone.parameters(), *method.projector.parameters()]
        torch._foreach_lerp_(list(self.parameters()), online, 1 - self.ema.at(progress))


class Queue(nn.Module):
    """A ring of the newest embeddings, (size, D); at first random unit rows."""

    rows: Tensor
    oldest: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", F.normalize(torch.randn(size, width), dim=1))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(self, new: Tensor, generator: torch.Generator) -> None:
        """Replace the oldest rows by `new`, any number; of more than fit, random ones stay (EqCo, section 2.3)."""
        size = len(self.rows)
        if len(new) > size:
            new = new[to_device(torch.randperm(len(new), generator=generator)[:size], new.device)]
        self.rows[(self.oldest + torch.arange(len(new), device=new.device)) % size] = new.to(self.rows.dtype)
        self.oldest.copy_((self.oldest + len(new)) % size)


class PredictingConfig(MethodConfig):
    """Methods with a predictor behind the online encoder; they take combinatorial patches."""

    takes_patches: ClassVar[bool] = True
    predictor: heads.Config


class Predicting(BaseMethod):
    """Online predictions of every view against detached target projections of the first two (BYOL, Fig. 2).

    Without an exponential moving average (`ema` None) the online encoder is the target too, as in SimSiam.
    """

    predictor: nn.Module

    def __init__(self, config: PredictingConfig, setup: Setup, ema: Ema | None) -> None:
        super().__init__(config, setup)
        self.patches = setup.patches
        self.predictor = heads.build(config.predictor, config.projector.out)
        set_groups(self.predictor, self.bn_groups, self.microbatches)
        self.target = Target(self, ema) if ema else None

    def predictions_and_targets(self, views: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """V predictions (N, E, D) and two targets (N, D), unit rows; E embeddings an image, 1 without patches."""
        online_targets = self.target is None and isinstance(self.patches, patches.Whole)

        def predict(images: Tensor) -> Tensor:
            """(N, E, D); where the online encoder is the target, (N, 2, D): a prediction and the projection."""
            if online_targets:
                projections = self.projector(self.backbone(images))
                return unit(torch.stack([self.predictor(projections), projections], 1))
            networks = (self.backbone, self.projector, self.predictor)
            return unit(patches.encode(self.patches, images, *networks, self.generator("patches")))

        encoded = in_passes(
            lambda images: in_microbatches(predict, images, self.microbatches), views, separate=2
        )
        if online_targets:
            return [both[:, :1] for both in encoded], [both[:, 1].detach() for both in encoded[:2]]
        if self.target:
            return encoded, [self.target.embed(view) for view in views[:2]]
        with torch.no_grad():  # the patches' projections are no targets: another pass (Fast-MoCo, C.1)
            return encoded, [self.embed(view) for view in views[:2]]

    def after_step(self, progress: float) -> None:
        """Move the target encoder; the first step's target equals the online encoder."""
        if self.target:
            self.target.follow(self, progress)


def unit(x: Tensor) -> Tensor:
    """Rows of length 1, in float32 whatever the encoder's precision (float64 stays)."""
    return F.normalize(x if x.dtype == torch.float64 else x.float(), dim=-1)


def in_passes(encode: Callable[[Tensor], Tensor], views: list[Tensor], *, separate: int) -> list[Tensor]:
    """`encode` of each view, which decides who shares batch statistics.

    The first `separate` views have a pass each; of the rest, neighbours of one size go together, image-major.
    """
    encoded = [encode(view) for view in views[:separate]]
    for _, group in groupby(views[separate:], key=lambda view: view.shape[-1]):
        together = list(group)
        encoded += encode(image_major(together)).unflatten(0, (-1, len(together))).unbind(1)
    return encoded


def in_microbatches(encode: Callable[[Tensor], Tensor], images: Tensor, microbatches: int) -> Tensor:
    """`encode` of the images, piece by piece.

    A piece is encoded again in the backward pass, so that the activations of only one exist at a time.
    """
    if microbatches == 1:
        return encode(images)
    if not torch.is_grad_enabled():
        return torch.cat([encode(part) for part in images.chunk(microbatches)])
    again = partial(checkpoint, encode, use_reentrant=False, preserve_rng_state=False, context_fn=recomputing)
    return torch.cat([again(part) for part in images.chunk(microbatches)])


def image_major(views: list[Tensor]) -> Tensor:
    """V views (N, 3, H, W) as one batch (N V, 3, H, W): the views of an image follow each other."""
    return torch.stack(views, 1).flatten(0, 1) if len(views) > 1 else views[0]


def pairs(views: int, targets: int = 2) -> list[tuple[int, int]]:
    """(a, b) for every view a and every target view b of another crop: 2 (V - 1) pairs for two targets."""
    return [(a, b) for b in range(targets) for a in range(views) if a != b]


def agreement(predictions: Tensor, targets: Tensor) -> Contrast:
    """E predictions an image (N, E, D) and its target (N, D), without negatives."""
    return Contrast(
        predictions.flatten(0, 1), targets.repeat_interleave(predictions.shape[1], 0)[:, None], None
    )


def contrast_in_batch(queries: Tensor, keys: Tensor, temperature: float) -> Contrast:
    """E queries an image against the keys of all ranks' batch: its own is the positive, the others are negatives.

    Args:
        queries: (N, E, D).
        keys: (N, D).
    """
    n, e, _ = queries.shape
    columns = global_rows(n).repeat_interleave(e)  # (N E,): of an image among all ranks'
    positives = keys.repeat_interleave(e, 0)[:, None]
    return Contrast(queries.flatten(0, 1), positives, gather(keys), columns[:, None], temperature=temperature)


def sample_without_replacement(n: int, candidates: int, count: int, generator: torch.Generator) -> Tensor:
    """(n, count) int64 on the host: each of this rank's n rows `count` distinct numbers below `candidates`, independently.

    Work grows with the rows of all ranks x candidates: meant for the batches of hundreds that EqCo draws from.
    """
    blocks = torch.arange(n * ranks()).split(max(1, DRAWN // candidates))
    return local_part(
        torch.cat(
            [torch.rand(len(block), candidates, generator=generator).topk(count).indices for block in blocks]
        )
    )


def skip_own_columns(positions: Tensor, own: Tensor, width: int = 1) -> Tensor:
    """Positions among the others' columns to columns of all: those from `own` (N,) on move up by the `width` left out."""
    return positions + width * (positions >= own[:, None])
