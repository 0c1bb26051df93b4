"""Encoders."""

import pytest
import torch

from cl.networks import backbones


@pytest.mark.parametrize(("width", "parameters"), [(1, 23.5), (2, 93.9), (4, 375.4)])
def test_wide_networks_have_the_papers_size(width, parameters) -> None:
    """94 and 375 million parameters (EqCo, Table 7)."""
    with torch.device("meta"):
        network = backbones.build(
            backbones.Config(kind="resnet50", width=width, stem="imagenet", zero_init_residual=True)
        )
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(parameters, abs=0.05)
    assert network.fc_features == 2048 * width


def test_a_wide_network_runs() -> None:
    network = backbones.build(
        backbones.Config(kind="resnet18", width=2, stem="small", zero_init_residual=False)
    )
    assert network(torch.randn(2, 3, 16, 16)).shape == (2, network.fc_features) == (2, 1024)
