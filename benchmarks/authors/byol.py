"""BYOL beside google-deepmind/deepmind-research: their loss, LARS and schedules, with a stand-in for jax.

The networks are torchvision's with their heads' layers. Their target's momentum after step k is that of
k / K, ours that of (k + 1) / K, so theirs is given the next step. In real runs, the difference is below 1e-6.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.authors.harness import jax_stand_in
from benchmarks.authors.harness.comparison import Author, Training
from benchmarks.authors.harness.experiment import IMAGES, NORMS, STEPS, Experiment
from benchmarks.authors.harness.networks import Encoder, mlp
from benchmarks.authors.harness.source import Source
from benchmarks.authors.harness.stand_ins import module_of_file

SOURCE = Source("google-deepmind/deepmind-research", "f5de0ed", "byol/utils/optimizers.py")
BASE_LR, WARMUP, DECAY, MOMENTUM = 2.0, 2, 0.1, 0.99


class BYOL(Author):
    """One step is an epoch."""

    def __init__(self, folder: Path, ours: Experiment) -> None:
        jax_stand_in.install()
        files = ("optimizers", "schedules", "helpers")
        self.lars, self.schedules, helpers = (
            module_of_file(folder / "byol" / "utils" / f"{name}.py") for name in files
        )
        self.regression_loss = helpers.regression_loss
        heads = mlp(512, 48, 16, last_bias=False), mlp(16, 48, 16, last_bias=False)
        self.model, self.state = Encoder(*heads).double(), None
        self.follower = copy.deepcopy(self.model)
        self.online = [self.model.backbone, self.model.projector]
        self.heads = [self.model.predictor]
        self.target = [self.follower.backbone, self.follower.projector]
        self.optimizer = torch.optim.SGD(self.model.parameters())  # only holds the gradients

    def loss(self, views: list[Tensor], ours: Experiment) -> Tensor:
        first, second = (self.model.predictor(self.model(view)) for view in views)
        with torch.no_grad():
            targets = [self.follower(view) for view in views]
        return (self.regression_loss(first, targets[1]) + self.regression_loss(second, targets[0])).mean()

    @torch.no_grad()
    def update(self, ours: Experiment) -> None:
        step = torch.tensor(ours.step, dtype=torch.float64)
        step.astype = lambda dtype: step
        lr = float(self.schedules.learning_schedule(step, IMAGES, BASE_LR, STEPS, WARMUP))
        exclude = self.lars.exclude_bias_and_norm
        optimizer = self.lars.lars(lr, DECAY, weight_decay_filter=exclude, lars_adaptation_filter=exclude)
        params = haiku_tree(self.model)
        gradients = jax_stand_in.tree_map(lambda p: p.grad, params)
        updates, self.state = optimizer.update(gradients, self.state or optimizer.init(params), params)
        jax_stand_in.tree_map(lambda p, change: p.add_(change), params, updates)
        momentum = float(self.schedules.target_ema(step + 1, MOMENTUM, STEPS))
        for theirs, online in zip(self.target, self.online, strict=True):
            for t, p in zip(theirs.parameters(), online.parameters(), strict=True):
                t.copy_(momentum * t + (1 - momentum) * p)


def haiku_tree(model: nn.Module) -> dict[str, Any]:
    """The parameters with haiku's names, by which they find biases and norms."""
    tree = {}
    for name, module in model.named_modules():
        norm = isinstance(module, NORMS)
        names = {"weight": "scale", "bias": "offset"} if norm else {"weight": "w", "bias": "b"}
        leaves = {names[key]: p for key, p in module.named_parameters(recurse=False)}
        tree |= {name + "_batchnorm" * norm: leaves} if leaves else {}
    return tree


OURS = (
    *("method=byol_imagenet", "optim=lars", f"optim.base_lr={BASE_LR}", "optim.scaling=linear"),
    *(f"optim.warmup_epochs={WARMUP}", f"optim.weight_decay={DECAY}"),
    *("method.projector.hidden=[48]", "method.projector.out=16"),
    *("method.predictor.hidden=[48]", "method.predictor.out=16"),
)

COMPARISONS = [Training("byol", SOURCE, BYOL, OURS, steps_per_epoch=1)]
