"""Batch norm over groups of images."""

import copy

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from cl.networks import batch_norm
from cl.networks.batch_norm import GroupBatchNorm, has_batch_norm, set_groups, update_running_stats
from tests.support.tiny import TinyBackbone


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, BatchNormAct2d])
def test_group_batch_norm_is_batch_norm_of_each_group(kind) -> None:
    """With the activation that timm's convolutional networks have in their norms."""
    torch.manual_seed(0)
    plain = kind(4).double()
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


def test_running_statistics_move_once_per_pass() -> None:
    """Norms of different momenta, one of which is part of one pass only; two microbatches of two groups."""
    torch.manual_seed(0)
    plain = nn.ModuleList([nn.BatchNorm1d(3, momentum=0.3), nn.BatchNorm1d(5, momentum=0.1)]).double()
    module = copy.deepcopy(plain)
    set_groups(module, 4, 2)
    for passes, norm, ours in zip((2, 1), plain, module, strict=True):
        for _ in range(passes):
            microbatches = torch.randn(2, 12, norm.num_features, dtype=torch.float64) + 1
            groups = microbatches.unflatten(1, (2, 6)).flatten(0, 1)  # (4, 6, C)
            for buffer, values in ((norm.running_mean, groups.mean(1)), (norm.running_var, groups.var(1))):
                buffer += norm.momentum * (values.mean(0) - buffer)
            norm.num_batches_tracked += 1
            for x in microbatches:
                ours(x)
    update_running_stats(module)
    for _ in range(2):  # the second time, nothing has happened since the last
        for name, value in module.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-12, atol=1e-12)
        update_running_stats(module)


def test_the_form_with_few_operations_averages_alike() -> None:
    torch.manual_seed(0)
    calls = [[torch.randn(2, 6, channels) for _ in range(3)] for channels in (4, 1, 7)]
    expected = torch.cat([torch.stack(entry).mean((0, 2)) for entry in calls], 1)
    for averaged in (batch_norm._averaged, batch_norm._averaged_at_once):
        torch.testing.assert_close(averaged(calls), expected)


def test_batch_norm_is_found_in_either_form() -> None:
    network = TinyBackbone()
    assert has_batch_norm(network)
    set_groups(network, 2)
    assert has_batch_norm(network)
    assert not has_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 1), nn.LayerNorm(4)))


def test_batch_norms_without_groups_compute_what_pytorchs_do_and_count_together() -> None:
    """Two passes in training and one in eval mode; a copy counts for itself."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(16))
    kept = copy.deepcopy(plain)
    set_groups(kept, 1)
    kept = copy.deepcopy(kept)
    images = torch.randn(8, 3, 4, 4)
    for training in (True, True, False):
        for network in (plain, kept):
            network.train(training)
        assert torch.equal(kept(images), plain(images))
    assert kept[1].num_batches_tracked == 0
    update_running_stats(kept)
    for name, value in plain.state_dict().items():
        assert torch.equal(kept.state_dict()[name], value), name
