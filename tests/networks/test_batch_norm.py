"""Batch norm over groups of images."""

import copy

import torch
from torch import nn

from cl.networks.batch_norm import GroupBatchNorm, set_groups, update_running_stats
from tests.support.tiny import TinyBackbone


def test_group_batch_norm_is_batch_norm_of_each_group() -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(4).double()
    with torch.no_grad():
        plain.weight.uniform_(), plain.bias.uniform_()
    grouped = GroupBatchNorm(copy.deepcopy(plain), 3)
    x = torch.randn(12, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    parts = [copy.deepcopy(plain) for _ in range(3)]
    expected = torch.cat([norm(part) for norm, part in zip(parts, x.chunk(3), strict=True)])
    torch.testing.assert_close(grouped(x), expected)
    update_running_stats(grouped)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(
            getattr(grouped, name), torch.stack([getattr(n, name) for n in parts]).mean(0)
        )
    torch.testing.assert_close(
        torch.autograd.grad(grouped(x).square().sum(), x)[0],
        torch.autograd.grad(expected.square().sum(), x)[0],
    )
    plain.load_state_dict(grouped.state_dict())
    torch.testing.assert_close(grouped.eval()(x), plain.eval()(x))


def test_one_group_leaves_batch_norm_alone() -> None:
    module = TinyBackbone()
    set_groups(module, 1)
    assert type(module.bn) is nn.BatchNorm2d
    set_groups(module, 2)
    assert type(module.bn) is GroupBatchNorm
