"""Networks of timm that kind=resnet or kind=vit builds as well: `init` goes from either to the other."""

import pytest
import timm
import torch
from torch import Tensor, nn

from cl.networks import backbones
from cl.networks.backbones import BackboneConfig, resnet, vit
from cl.networks.backbones import timm as timm_backbone
from cl.training import start
from tests.support import backbones as tiny

RESNETS = resnet.PUBLISHED
TRANSFORMERS = [name for name in timm.list_models() if timm_backbone.PLAIN_VIT.fullmatch(name)]
FAST = ("resnet18", "vit_tiny_patch16_224")
WIDTHS = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}  # with heads (DeiT, Table 1; ViT, Table 1)


def ours(name: str) -> BackboneConfig:
    """Our configuration of a network of timm, for images of 64 px."""
    if name in RESNETS:
        return tiny.residual(name, "imagenet")
    _, size, patch, _ = name.split("_")
    width, heads = WIDTHS[size]
    sizes = {"patch": int(patch.removeprefix("patch")), "width": width, "depth": 12, "heads": heads}
    return vit.Config(kind="vit", **tiny.VIT | sizes)


def theirs(name: str, pool: str | None = None) -> BackboneConfig:
    return timm_backbone.Config(kind="timm", **tiny.TIMM | {"name": name, "pool": pool})


def drawn(network: nn.Module) -> dict[str, Tensor]:
    """Float64 tensors for a network on the meta device: weights by fan-in, variances above 0."""
    rng = torch.Generator().manual_seed(0)
    found = {}
    for name, tensor in network.state_dict().items():
        if not tensor.is_floating_point():
            found[name] = torch.zeros(tensor.shape, dtype=tensor.dtype)
            continue
        noise = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
        one = tensor.ndim == 1 and name.endswith("weight")
        fan_in = tensor[0].numel() if tensor.ndim > 1 else 25
        found[name] = noise.abs() + 0.5 if "running_var" in name else noise / fan_in**0.5 + one
    return found


def filled(config: BackboneConfig, tensors: dict[str, Tensor]) -> nn.Module:
    """The network with copies of these tensors, without the time to initialise its own."""
    with torch.device("meta"):
        network = backbones.build(config)
    network.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
    return network


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name in (*RESNETS, *TRANSFORMERS)
    ],
)
def test_networks_of_one_architecture_compute_the_same(name) -> None:
    """In eval mode, and in training also the running statistics. Names and shapes alone would not show it."""
    assert ours(name).architecture == theirs(name).architecture
    with torch.device("meta"):
        empty = backbones.build(ours(name))
    tensors = drawn(empty)
    one, other = (filled(config, tensors) for config in (ours(name), theirs(name)))
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for training in (False, True):
        found, expected = one.train(training)(images), other.train(training)(images)
        assert expected.std() > 1e-3
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_init_takes_the_backbone_of_the_other_kind(name) -> None:
    for source, target in ((ours(name), theirs(name)), (theirs(name), ours(name))):
        network, filled = backbones.build(source), backbones.build(target)
        start.from_backbone(network, source, {}).load_backbone(filled, target)
        torch.testing.assert_close(filled.state_dict(), network.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ours("resnet50"), theirs("resnet50d")),  # three convolutions in the stem
        (ours("resnet50"), theirs("resnet50s")),
        (ours("resnet50"), theirs("resnet50_gn")),
        (ours("resnet50"), theirs("resnetblur50")),  # the same tensors, but downsampled otherwise
        (ours("resnet18").model_copy(update={"stem": "small"}), theirs("resnet18")),
        (ours("vit_small_patch16_224").model_copy(update={"heads": 12}), theirs("vit_small_patch16_224")),
        (ours("vit_tiny_patch16_224"), theirs("vit_tiny_patch16_224", pool="average")),  # norm after pooling
        (ours("vit_base_patch16_224"), theirs("vit_base_patch16_siglip_224")),
        (tiny.config("vit", registers=2), tiny.config("vit", registers=0)),
        (tiny.config("vit", layer_scale=0.1), tiny.config("vit")),
    ],
)
def test_init_refuses_networks_that_compute_something_else(ours, theirs) -> None:
    tensors = {"backbone.a": torch.zeros(1)}
    for source, target in ((ours, theirs), (theirs, ours)):
        given, wanted = source.architecture, target.architecture
        beginning = start.Start(tensors, {"architecture": given})
        with pytest.raises(ValueError, match=f"init gives a {given}, but backbone is a {wanted}; choose"):
            beginning.load_backbone(nn.Identity(), target)
