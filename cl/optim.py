"""Optimizers and learning-rate schedules."""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from cl.strict import Strict


class Config(Strict):
    """How to train: total batch, epochs, optimizer, schedule. The learning rate that counts is `lr()`."""

    kind: Literal["sgd", "lars"]
    batch_size: int = Field(gt=1, description="images a step, of all processes together")
    epochs: float = Field(gt=0)
    base_lr: float = Field(gt=0, description="at the reference batch")
    reference_batch: int = Field(gt=0)
    scaling: Literal["linear", "sqrt", "none"] = Field(description="of the learning rate with the batch")
    momentum: float = Field(ge=0, lt=1)
    nesterov: bool
    weight_decay: float = Field(ge=0)
    decay_1d: bool = Field(description="weight decay on biases and norm layers too")
    warmup_epochs: float = Field(ge=0, description="linear from 0")
    schedule: Literal["cosine", "constant", "steps"]
    milestones: list[float] = Field(
        description="schedule=steps: fractions of the run at which the rate is multiplied by `gamma`"
    )
    gamma: float = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _nothing_ignored(self) -> "Config":
        if self.nesterov and self.kind != "sgd":
            raise ValueError(f"nesterov=true is for kind=sgd, kind={self.kind} would ignore it")
        if bool(self.milestones) != (self.schedule == "steps"):
            raise ValueError(f"schedule={self.schedule} with milestones={self.milestones}: they go with schedule=steps alone")
        return self

    def lr(self) -> float:
        """The largest learning rate of the run, scaled to the batch."""
        ratio = self.batch_size / self.reference_batch
        return self.base_lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[self.scaling]


def lr_factor(config: Config, step: int, steps: int, steps_per_epoch: int) -> float:
    """The learning rate of a step as a fraction of the largest: linear warm-up from 0, then the schedule over the rest.

    Cosine: (1 + cos(pi x)) / 2 with x the fraction done of the steps after warm-up (SimCLR, MoCo v3).
    """
    warmup = config.warmup_epochs * steps_per_epoch
    if step < warmup:
        return step / warmup
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * (step - warmup) / max(1.0, steps - warmup))) / 2
    if config.schedule == "steps":
        return config.gamma ** sum(step >= milestone * steps for milestone in config.milestones)
    return 1.0


def build(config: Config, modules: list[tuple[nn.Module, float]]) -> Optimizer:
    """The optimizer of all parameters that want a gradient, of each module with its factor on the learning rate.

    Each module gives two groups: matrices, and biases and norm layers.
    """
    groups = []
    for module, scale in modules:
        parameters = [p for p in module.parameters() if p.requires_grad]
        vectors = [p for p in parameters if p.ndim <= 1]
        decay = config.weight_decay if config.decay_1d else 0.0
        groups.append({"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay, "scale": scale})
        groups.append({"params": vectors, "weight_decay": decay, "scale": scale})
    groups = [group for group in groups if group["params"]]
    if config.kind == "lars":
        return LARS(groups, config.lr(), momentum=config.momentum)
    return torch.optim.SGD(groups, config.lr(), momentum=config.momentum, nesterov=config.nesterov, fused=True)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of this step, times each group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


class LARS(Optimizer):
    """Layer-wise adaptive rates, the variant of SimCLR, MoCo v3 and BYOL that leaves 1-d parameters alone.

    g <- g + decay w; g <- g eta |w| / |g| for w of two or more dimensions (1 where a norm is 0);
    v <- momentum v + g; w <- w - lr v. eta = 0.001.
    """

    def __init__(self, parameters: Iterable, lr: float, *, momentum: float, eta: float = 0.001) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "eta": eta, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[no-untyped-def, override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
        if parameter.ndim > 1:
            weight_norm, gradient_norm = parameter.norm(), gradient.norm()
            usable = (weight_norm > 0) & (gradient_norm > 0)
            gradient *= torch.where(usable, group["eta"] * weight_norm / gradient_norm, 1.0)
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        parameter.sub_(velocity, alpha=group["lr"])
