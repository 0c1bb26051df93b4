"""Optimizers and learning-rate schedules."""

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from cl.runtime.base_config import BaseConfig

Factor = Annotated[float, Field(gt=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Lars(BaseConfig):
    """Where the published variants of LARS differ; see `LARS`."""

    eta: float = Field(gt=0, description="trust coefficient")
    eps: float = Field(ge=0, description="added to the denominator of the trust ratio")
    adapt_1d: bool = Field(description="a trust ratio for biases and norm layers too")
    norm: Literal["sum", "parts"] = Field(description="denominator: |g + decay w|, or |g| + decay |w|")
    order: Literal["ratio", "ratio_rate", "last"] = Field(description="of trust ratio, rate and momentum")


class Config(BaseConfig):
    """How to train: total batch, epochs, optimizer, schedule. The effective learning rate is `peak_lr`.

    Options that are off by default may be left out.
    """

    kind: Literal["sgd", "lars", "adamw"]
    batch_size: int = Field(gt=1, description="images per step, over all processes")
    epochs: float = Field(gt=0)
    base_lr: float = Field(gt=0, description="learning rate for a batch of reference_batch")
    reference_batch: int = Field(gt=0)
    scaling: Literal["linear", "none"] = Field(description="of the learning rate with the batch size")
    momentum: float = Field(ge=0, lt=1)
    nesterov: bool
    betas: tuple[Beta, Beta] | None = Field(None, description="only for kind=adamw")
    lars: Lars | None = Field(None, description="only for kind=lars")
    weight_decay: float = Field(ge=0)
    final_weight_decay: float | None = Field(None, ge=0, description="end of a half cosine; null: constant")
    decay_1d: bool = Field(True, description="weight decay on biases and norm layers too")
    clip: float | None = Field(None, gt=0, description="largest norm of the gradient over all parameters")
    clip_each: float | None = Field(None, gt=0, description="largest norm of the gradient of each tensor")
    warmup_epochs: float = Field(ge=0, description="linear from `warmup_start`; see `warmup`")
    warmup_start: float = Field(0.0, ge=0, le=1, description="fraction of the largest rate")
    schedule: Literal["cosine", "cosine_whole", "constant", "steps"] = Field(description="see `lr_factor`")
    per: Literal["step", "epoch"] = Field("step", description="how often the learning rate changes")
    final: float = Field(0.0, ge=0, lt=1, description="end of a cosine, as a fraction of the largest rate")
    milestones: list[float] = Field(description="only for schedule=steps: fractions of the run")
    gamma: Factor | list[Factor] = Field(description="factor of the rate at all milestones, or at each")

    @model_validator(mode="after")
    def _optimizer_takes_its_options(self) -> "Config":
        options = (  # name, kinds that take it, value for the other kinds
            ("nesterov", ("sgd",), "false"),
            ("momentum", ("sgd", "lars"), "0"),
            ("lars", ("lars",), "null"),
            ("betas", ("adamw",), "null"),
        )
        for name, kinds, without in options:
            if getattr(self, name) and self.kind not in kinds:
                raise ValueError(
                    f"{name} is only for kind={' or '.join(kinds)}, found kind={self.kind}; "
                    f"choose {name}={without}"
                )
            if without == "null" and self.kind in kinds and not getattr(self, name):
                raise ValueError(f"kind={self.kind} needs {name}, found {name}=null")
        return self

    @model_validator(mode="after")
    def _schedule_takes_its_options(self) -> "Config":
        ascending = self.milestones == sorted(self.milestones) and all(0 < m < 1 for m in self.milestones)
        if not ascending or bool(self.milestones) != (self.schedule == "steps"):
            raise ValueError(
                f"found schedule={self.schedule} with milestones={self.milestones}; schedule=steps needs "
                "ascending fractions, such as 0.6 of the run, and others take none"
            )
        if isinstance(self.gamma, list) and len(self.gamma) != len(self.milestones):
            raise ValueError(f"gamma={self.gamma}, expected one for each of milestones={self.milestones}")
        if self.final and not self.schedule.startswith("cosine"):
            raise ValueError(
                f"final={self.final} applies to cosines only, found schedule={self.schedule}; choose 0"
            )
        return self

    @property
    def warmup(self) -> float:
        """The epochs of warm-up: `warmup_epochs`, or half of a run that is not longer than that."""
        return self.warmup_epochs if self.warmup_epochs < self.epochs else self.epochs / 2

    @property
    def peak_lr(self) -> float:
        """The largest learning rate of the run, scaled to the batch."""
        return self.base_lr * (self.batch_size / self.reference_batch if self.scaling == "linear" else 1.0)


def lr_factor(config: Config, step: int, steps: int, steps_per_epoch: int) -> float:
    """The learning rate of a step as a fraction of the largest: linear warm-up, then the schedule.

    The cosine is (1 + cos(pi x)) / 2, with x the fraction done of the steps after warm-up (SimCLR, MoCo v3).
    With `cosine_whole`, x is the fraction of all steps, and warm-up multiplies the cosine (SiMo). With
    `per: epoch`, x is taken at the epoch's first step (MoCo, SimSiam).
    """
    warmup = config.warmup * steps_per_epoch
    rise = config.warmup_start + (1 - config.warmup_start) * min(1.0, step / warmup) if warmup else 1.0
    if config.per == "epoch":
        step = step // steps_per_epoch * steps_per_epoch
    if config.schedule == "cosine_whole":
        return rise * _cosine(step / steps, config.final)
    if step < warmup:
        return rise
    if config.schedule == "cosine":
        return _cosine((step - warmup) / max(1.0, steps - warmup), config.final)
    if config.schedule == "steps":
        passed = sum(step >= round(milestone * steps, 6) for milestone in config.milestones)
        return config.gamma**passed if isinstance(config.gamma, float) else math.prod(config.gamma[:passed])
    return 1.0


def _cosine(done: float, final: float) -> float:
    return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2


class Part(NamedTuple):
    """A module to train.

    rate: the learning rate relative to the config's.
    weight_decay: None for the config's.
    without: a submodule that this part leaves out.
    rate_1d: the learning rate of biases and norm layers relative to the matrices' rate.
    """

    module: nn.Module
    rate: float = 1.0
    weight_decay: float | None = None
    without: nn.Module | None = None
    rate_1d: float = 1.0


class Group(NamedTuple):
    """Parameters that share a learning rate and weight decay; `_asdict()` is a parameter group for PyTorch.

    scale: of the learning rate, relative to the largest of the schedule.
    fixed: the learning rate stays at its largest.
    scheduled_decay: the weight decay moves to `final_weight_decay`.
    """

    params: list[nn.Parameter]
    weight_decay: float
    scale: float = 1.0
    fixed: bool = False
    scheduled_decay: bool = False


def build(config: Config, modules: list[Part], fixed: nn.Module | None = None) -> Optimizer:
    """The optimizer of all parameters that require a gradient.

    The parameters of `fixed`, a part of these modules, keep the largest learning rate throughout (SimSiam and
    Fast-MoCo: the predictor).
    """
    unscheduled = {id(p) for p in fixed.parameters()} if fixed else set()
    groups = [g._asdict() for part in modules for g in _groups(part, config, unscheduled) if g.params]
    if config.lars:
        return LARS(groups, config.peak_lr, momentum=config.momentum, variant=config.lars)
    if config.betas:
        return torch.optim.AdamW(groups, config.peak_lr, betas=config.betas, fused=True)
    return torch.optim.SGD(
        groups, config.peak_lr, momentum=config.momentum, nesterov=config.nesterov, fused=True
    )


def _groups(part: Part, config: Config, unscheduled: set[int]) -> Iterator[Group]:
    """Scheduled matrices, scheduled vectors, then the same for the `unscheduled`, which are ids."""
    decay = config.weight_decay if part.weight_decay is None else part.weight_decay
    scheduled = config.final_weight_decay is not None and part.weight_decay is None
    others = {id(p) for p in part.without.parameters()} if part.without else set()
    trained = [p for p in part.module.parameters() if p.requires_grad and id(p) not in others]
    for fixed, vectors in product((False, True), repeat=2):
        decays = config.decay_1d or not vectors
        yield Group(
            [p for p in trained if (id(p) in unscheduled, p.ndim <= 1) == (fixed, vectors)],
            weight_decay=decay if decays else 0.0,
            scale=part.rate * (part.rate_1d if vectors else 1.0),
            fixed=fixed,
            scheduled_decay=scheduled and decays,
        )


def set_lr(optimizer: Optimizer, largest: float, factor: float) -> float:
    """Set the learning rate of each `Group` to largest x factor x its scale; return largest x factor."""
    for group in optimizer.param_groups:
        group["lr"] = largest * group["scale"] * (1.0 if group["fixed"] else factor)
    return largest * factor


def set_decay(optimizer: Optimizer, config: Config, progress: float) -> None:
    """Set the weight decay for `progress`, the fraction of steps done, if it has a schedule (DINO)."""
    if config.final_weight_decay is None:
        return
    change = config.weight_decay - config.final_weight_decay
    for group in optimizer.param_groups:
        if group["scheduled_decay"]:
            group["weight_decay"] = config.final_weight_decay + change * _cosine(progress, 0)


def clip_gradients(optimizer: Optimizer, config: Config) -> Tensor:
    """Scale the gradients down to the limits `clip` and `clip_each`; return their total norm before that.

    A tensor with norm n is scaled by min(1, clip_each / (n + 1e-6)), and all tensors likewise by `clip`.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    norm = torch.linalg.vector_norm(norms)
    if config.clip_each:
        factors = (config.clip_each / (norms + 1e-6)).clamp(max=1)
        torch._foreach_mul_(gradients, factors.unbind())
    if config.clip:
        clipped_norm = nn.utils.get_total_norm(gradients) if config.clip_each else norm
        nn.utils.clip_grads_with_norm_(parameters, config.clip, clipped_norm)
    return norm


class LARS(Optimizer):
    """Layer-wise adaptive rates: each update is scaled by a trust ratio r = eta |w| / (denominator + eps).

    d = g + decay w; r = 1 where |w| or the denominator is 0, and for biases and norm layers unless
    `adapt_1d`. LARC leaves a tensor whose gradient is 0 to its momentum (r = 0):

    ratio        v <- momentum v + r d;        w <- w - lr v     (MoCo v3, BYOL; apex's LARC)
    ratio_rate   v <- momentum v + lr r d;     w <- w - v        (SimCLR, OpenSelfSup)
    last         v <- momentum v + d;          w <- w - lr r v   (Fast-MoCo's linear evaluation)
    """

    def __init__(self, parameters: Iterable, lr: float, *, momentum: float, variant: Lars) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})
        self.variant = variant

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[no-untyped-def, override]
        """Update every parameter that has a gradient, without synchronising with the device."""
        assert closure is None
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            for adapted in (False, True):
                if weights := [p for p in trained if (p.ndim > 1 or self.variant.adapt_1d) == adapted]:
                    self._update(weights, group, adapted)

    def _update(self, weights: list[Tensor], group: dict, adapted: bool) -> None:
        lr, order = group["lr"], self.variant.order
        gradients = [w.grad for w in weights if w.grad is not None]
        decayed = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
        measured = decayed if self.variant.norm == "sum" else gradients
        ratios = self._ratios(weights, measured, group["weight_decay"]) if adapted else None
        for w in weights:
            if "momentum_buffer" not in self.state[w]:
                self.state[w]["momentum_buffer"] = torch.zeros_like(w)
        velocity = [self.state[w]["momentum_buffer"] for w in weights]
        torch._foreach_mul_(velocity, group["momentum"])
        _add(velocity, decayed, lr if order == "ratio_rate" else 1.0, None if order == "last" else ratios)
        _add(weights, velocity, -1.0 if order == "ratio_rate" else -lr, ratios if order == "last" else None)

    def _ratios(self, weights: list[Tensor], measured: list[Tensor], decay: float) -> tuple[Tensor, ...]:
        """The trust ratio of each tensor, a scalar on its device."""
        weight = torch.stack(torch._foreach_norm(weights))  # (tensors,)
        norm = torch.stack(torch._foreach_norm(measured))
        denominator = norm if self.variant.norm == "sum" else norm + decay * weight
        ratio = self.variant.eta * weight / (denominator + self.variant.eps)
        ratio = torch.where((weight > 0) & (denominator > 0), ratio, 1.0)
        is_larc = (self.variant.norm, self.variant.order) == ("parts", "ratio")
        return (torch.where(norm > 0, ratio, 0.0) if is_larc else ratio).unbind()


def _add(totals: list[Tensor], terms: list[Tensor], factor: float, ratios: tuple[Tensor, ...] | None) -> None:
    """Add factor x term to each total, or factor x ratio x term."""
    if ratios is None:
        torch._foreach_add_(totals, terms, alpha=factor)
    else:
        torch._foreach_addcmul_(totals, terms, ratios, value=factor)
