"""The target encoder."""

import copy
import math

import torch

from cl.networks import backbones
from cl.networks.target import Ema, Target
from tests.support.backbones import config
from tests.support.methods import EMA, build


def test_the_target_averages_parameters_and_nothing_else() -> None:
    """BYOL's schedule: 1 - (1 - m) (1 + cos(pi t)) / 2; running statistics are the target's own."""
    method = build("byol")
    with torch.no_grad():
        for parameter in method.backbone.parameters():
            parameter += 1
    before = copy.deepcopy(method.target.state_dict())
    method.after_step(0.25)
    m = 1 - 0.1 * (1 + math.cos(math.pi / 4)) / 2
    for name, parameter in method.target[0].named_parameters():
        expected = m * before[f"0.{name}"] + (1 - m) * method.backbone.get_parameter(name)
        torch.testing.assert_close(parameter, expected)
    for name, buffer in method.target.named_buffers():
        assert torch.equal(buffer, before[name])
    assert EMA.momentum_at(1.0) == 1
    assert Ema(momentum=0.9, schedule="constant").momentum_at(0.7) == 0.9


def test_the_target_leaves_out_no_branches() -> None:
    """Drop path acts on the online encoder alone."""
    torch.manual_seed(0)
    backbone = backbones.build(config("vit", drop_path=0.5)).train()
    target = Target(backbone, torch.nn.Identity(), EMA).train()  # type: ignore[arg-type]
    images = torch.randn(4, 3, 64, 64)
    assert torch.equal(target.embed(images), target.embed(images))
    assert not torch.equal(backbone(images), backbone(images))
