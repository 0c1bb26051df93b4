"""Projection and prediction heads."""

import pytest
import torch
from torch import nn

from cl.networks import heads
from tests.support.methods import HEAD


@pytest.mark.parametrize("last_norm", ["none", "affine", "plain"])
def test_heads_have_the_layers_asked_for(last_norm) -> None:
    config = heads.Config(hidden=[4, 6], out=3, norm=True, last_norm=last_norm, last_bias=False, std=0.01)
    layers = heads.build(config, 800)
    names = ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"] + ["BatchNorm1d"] * (last_norm != "none")
    assert [type(layer).__name__ for layer in layers] == names
    assert [layer.bias is None for layer in layers if isinstance(layer, nn.Linear)] == [True, True, True]
    assert float(layers[0].weight.std()) == pytest.approx(0.01, rel=0.1)
    if last_norm != "none":
        assert layers[-1].affine == (last_norm == "affine")
    plain = heads.build(HEAD.model_copy(update={"norm": False, "hidden": [4]}), 8)
    assert [type(layer).__name__ for layer in plain] == ["Linear", "ReLU", "Linear"]
    assert all(layer.bias is not None for layer in plain if isinstance(layer, nn.Linear))
    changes = {"norm": False, "hidden": [4], "activation": "gelu", "std": 0.01}
    smooth = heads.build(HEAD.model_copy(update=changes), 8)
    assert [type(layer).__name__ for layer in smooth] == ["Linear", "GELU", "Linear"]
    assert not any(layer.bias.any() for layer in smooth if isinstance(layer, nn.Linear))


def test_the_last_layer_may_give_cosines() -> None:
    """Whatever the lengths of inputs and weights; without a bias, which is refused."""
    torch.manual_seed(0)
    config = heads.Config(hidden=[], out=3, norm=False, last_norm="cosine", last_bias=False, std=None)
    (layer,) = heads.build(config, 5)
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(3))
    layer.weight.data *= torch.tensor([[2.0], [0.5], [7.0]])
    x = torch.randn(4, 5)
    expected = torch.stack([torch.cosine_similarity(x, row[None]) for row in layer.weight], 1)
    torch.testing.assert_close(layer(x), expected)
    with pytest.raises(ValueError, match="last_bias=true has no effect before last_norm=cosine"):
        heads.Config(hidden=[], out=3, norm=False, last_norm="cosine", last_bias=True, std=None)
