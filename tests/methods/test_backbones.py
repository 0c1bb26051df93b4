"""Methods on every kind of backbone, each at a tiny size."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cl.networks import backbones
from cl.networks.backbones import BackboneConfig
from cl.networks.batch_norm import GroupBatchNorm
from cl.objective.batch import Batch
from cl.runtime.registry import kinds, module_of
from tests.support.backbones import TIMM, VIT
from tests.support.methods import (
    FAST,
    WHOLE,
    Case,
    batch_of,
    build,
    loss_config,
    task_of,
    train_step,
    training_batch,
    usual_loss,
    views,
)

TINY: dict[str, list[dict[str, Any]]] = {
    "resnet": [{"name": "resnet18", "width": 1, "stem": "small", "zero_init_residual": False}],
    "vit": [VIT, {**VIT, "positions": "learned", "pool": "average", "registers": 2, "drop_path": 0.4}],
    "timm": [
        {**TIMM, "name": "test_convnext", "drop_path": 0.4, "checkpointing": True},
        {**TIMM, "name": "test_efficientnet"},
    ],
}
# Of large views and small crops that are cut; half as large otherwise: timm halves them five times.
SIZES = {"resnet": (32, 16), "vit": (96, 64), "timm": (96, 64)}
SETTINGS = [(kind, number) for kind in kinds("networks.backbones") for number in range(len(TINY[kind]))]


def config(kind: str, number: int = 0) -> BackboneConfig:
    found: BackboneConfig = module_of("networks.backbones", kind).Config(kind=kind, **TINY[kind][number])
    return found


def _batch(kind: str, option: dict, number: int, sizes: tuple[int, int]) -> Batch:
    views = training_batch(kind, option, 4, number)
    large = views.views[0].shape[-1]
    resized = [F.interpolate(view, sizes[view.shape[-1] < large]) for view in views.views]
    return dataclasses.replace(views, views=resized)


def trained(
    case: Case, backbone: BackboneConfig, loss: str, bn_groups: int = 1, microbatches: int = 1
) -> nn.Module:
    """Two steps of a method on the backbone, a copy through the state dict, then another step of both."""
    kind, option, cut = case
    tasks, sizes = [], SIZES[backbone.kind]
    if cut == WHOLE:
        sizes = sizes[0] // 2, sizes[1] // 2
    for _ in range(2):
        torch.manual_seed(0)
        network = backbones.build(backbone).double()
        method = build(
            kind, cut=cut, bn_groups=bn_groups, microbatches=microbatches, backbone=network, **option
        )
        tasks.append(task_of(method, loss_config(loss)))
    first, second = tasks
    before = copy.deepcopy(first.state_dict())
    for number in range(2):
        train_step(first, number, _batch(kind, option, number, sizes))
    second.load_state_dict(first.state_dict())
    for task in tasks:
        assert torch.isfinite(train_step(task, 2, _batch(kind, option, 2, sizes)))
    changed = set()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
        if not torch.equal(tensor, before[name]):
            changed.add(name)
    fixed = {
        name for name, parameter in first.method.backbone.named_parameters() if not parameter.requires_grad
    }
    assert not {f"method.backbone.{name}" for name in fixed} & changed
    assert {f"method.backbone.{name}" for name, p in first.method.backbone.named_parameters()} - changed == {
        f"method.backbone.{name}" for name in fixed
    }
    return first


SIMCLR, MOCO_V3 = ("simclr", {}, WHOLE), ("moco_v3", {}, FAST)
FAST_SETTINGS = [("vit", 0, MOCO_V3), ("vit", 1, SIMCLR), ("timm", 0, SIMCLR), ("timm", 1, MOCO_V3)]


@pytest.mark.parametrize(
    ("kind", "number", "case"),
    [
        pytest.param(*each, case, marks=[pytest.mark.slow] * ((*each, case) not in FAST_SETTINGS))
        for each in SETTINGS
        for case in (SIMCLR, MOCO_V3)
    ],
)
def test_every_backbone_trains_and_continues_equal(kind, number, case) -> None:
    task = trained(case, config(kind, number), usual_loss(case[0]).kind, bn_groups=2, microbatches=2)
    norms = [layer for layer in task.modules() if isinstance(layer, GroupBatchNorm)]
    assert any(norm in set(task.method.backbone.modules()) for norm in norms) == (
        kind == "resnet" or "efficientnet" in str(TINY[kind][number].get("name"))
    )


@pytest.mark.parametrize("kind", ["vit", "timm"])
def test_recomputation_changes_no_gradient(kind) -> None:
    """Neither that of a network's own blocks nor that of microbatches, although drop path draws numbers."""
    gradients = []
    for checkpointing, microbatches in ((False, 1), (True, 1), (False, 2)):
        number = 1 if kind == "vit" else 0
        settings = {"checkpointing": checkpointing, "drop_path": 0.0 if microbatches == 2 else 0.4}
        torch.manual_seed(0)
        network = backbones.build(config(kind, number).model_copy(update=settings)).double()
        task = task_of(build("simclr", microbatches=microbatches, bn_groups=2, backbone=network))
        task.begin_step(3, 0.0)
        task(batch_of(views(4, sizes=(64, 64)))).backward()
        gradients.append([p.grad for p in network.parameters() if p.requires_grad])
    whole, recomputed, _ = gradients
    for ours, theirs in zip(whole, recomputed, strict=True):
        torch.testing.assert_close(ours, theirs)
