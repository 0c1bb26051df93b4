"""Encoders."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from skimage.color import rgb2lab, rgb2ycbcr
from torch import nn

from cl import config
from cl.encoders import foreign, formats
from cl.networks import backbones
from cl.networks.backbones import resnet
from cl.networks.resnet import lab, ycbcr
from cl.runtime.tensor_files import save_tensors
from cl.training import start
from tests.support import backbones as tiny
from tests.support.project import compose

MEAN, STD = (0.4, 0.5, 0.45), (0.2, 0.25, 0.3)
# Mean and standard deviation of each channel in CMC's code.
CMC = {
    "lab": ([50, 6.025, -6.6895], [50, 92.208, 101.1675]),
    "ycbcr": ([116.151, 121.080, 132.342], [109.5, 111.855, 111.964]),
}


def two(space: str, **changes: Any) -> torch.nn.Module:
    """Two networks for small images, in float64 and eval mode."""
    streams = resnet.Streams(space=space, mean=MEAN, std=STD)  # type: ignore[arg-type]
    torch.manual_seed(0)
    return backbones.build(tiny.residual(streams=streams, **changes)).double().eval()


def images(n: int) -> np.ndarray:
    """(n, 16, 16, 3) float64 in [0, 1]: noise, dark and bright colours, and all corners of the cube."""
    rng = np.random.default_rng(0)
    pixels = rng.random((n, 16, 16, 3)) * rng.choice([0.02, 0.2, 1.0], (n, 16, 16, 1))
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * 3), -1).reshape(-1, 3)
    pixels[0, 0, :8] = corners
    return pixels


def normalised(pixels: np.ndarray) -> torch.Tensor:
    """(n, 3, 16, 16), as data sets give them to an encoder."""
    return torch.from_numpy((pixels - np.array(MEAN)) / np.array(STD)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *((name, 1) for name in resnet.PUBLISHED),
        *((name, width) for name in ("resnet18", "resnet50") for width in resnet.WIDTHS if width != 1),
    ],
)
def test_weights_grow_with_the_square_of_the_width(name, width) -> None:
    """Except those of norms and of the stem, which has three input channels: they grow with the width.

    So ResNet-50 of width 2 and 4 has 94 and 375 million parameters (EqCo, Table 7).
    """
    with torch.device("meta"):
        network = backbones.build(tiny.residual(name, "imagenet", width=width))
        theirs = torchvision.models.get_model(name)
        theirs.fc = nn.Identity()
    linear = sum(p.numel() for name, p in theirs.named_parameters() if p.ndim == 1 or name == "conv1.weight")
    square = sum(p.numel() for p in theirs.parameters()) - linear
    assert sum(p.numel() for p in network.parameters()) == width * linear + width**2 * square


def test_resnet10_is_the_first_block_of_each_stage_of_resnet18() -> None:
    with torch.device("meta"):
        ten, eighteen = (backbones.build(tiny.residual(name)) for name in ("resnet10", "resnet18"))
    theirs = {name: value.shape for name, value in eighteen.state_dict().items() if ".1." not in name[:9]}
    assert {name: value.shape for name, value in ten.state_dict().items()} == theirs


@pytest.mark.parametrize(("width", "features"), [(0.125, 64), (0.5, 256), (2, 1024)])
def test_networks_of_other_widths_run(width, features) -> None:
    """With the small stem, which keeps the size of the images."""
    network, images = backbones.build(tiny.residual(width=width)), torch.randn(2, 3, 16, 16)
    assert network(images).shape == (2, network.fc_features) == (2, features)
    assert network.maxpool(network.conv1(images)).shape[2:] == (16, 16)


def test_the_cosine_stem_has_the_cosine_transforms_patterns_which_stay_and_random_ones_beside_them() -> None:
    """Ahmed et al. 1974: c_k sqrt(2 / n) cos(pi k (x + 1/2) / n), over channels, rows and columns."""

    def wave(k: int, n: int, x: int) -> float:
        return math.sqrt((1 if k == 0 else 2) / n) * math.cos(math.pi * k * (x + 0.5) / n)

    network = backbones.build(tiny.residual(cosine_stem=True))
    weights = network.conv1.weight
    found = weights[:27].flatten(1).double()
    expected = [
        [wave(c, 3, x) * wave(h, 3, y) * wave(w, 3, z) for x, y, z in itertools.product(range(3), repeat=3)]
        for c, h, w in itertools.product(range(3), repeat=3)
    ]
    closeness = found @ torch.tensor(expected, dtype=torch.float64).T  # 1 for the same pattern, else 0
    torch.testing.assert_close(closeness[:, closeness.argmax(1)], torch.eye(27).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(weights[0], torch.full((3, 3, 3), 27**-0.5))
    assert (weights[[0, 1, 2]].diff(dim=1).abs() < 1e-6).all()  # gray
    assert weights[27:].flatten(1).unique(dim=0).shape[0] == 64 - 27
    assert [name for name, each in network.named_parameters() if not each.requires_grad] == ["conv1.weight"]


def test_widths_are_checked_and_integers_stay_integers(tmp_path) -> None:
    for given, expected in (("1", "1"), ("1.0", "1"), ("0.25", "0.25")):
        found = config.check(compose(tmp_path, "backbone=resnet18_small", f"backbone.width={given}")).backbone
        assert f'"width":{expected},' in found.model_dump_json()
        assert found.architecture == f"resnet18 of width {expected} with small stem"
    for refused in (0.3, 3, "wide"):
        with pytest.raises(ValueError, match=f"width: found {refused}, expected 0.125, 0.25, 0.5, 1, 2 or 4"):
            config.check(compose(tmp_path, "backbone=resnet18_small", f"backbone.width={refused}"))


@pytest.mark.parametrize(("space", "theirs"), [(lab, rgb2lab), (ycbcr, rgb2ycbcr)])
def test_colour_spaces_are_scikit_images(space, theirs) -> None:
    pixels = images(4)
    expected = torch.from_numpy(theirs(pixels)).permute(0, 3, 1, 2)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        rgb = torch.from_numpy(pixels).to(dtype).permute(0, 3, 1, 2)
        found = space(rgb)
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("space", "theirs"), [("lab", rgb2lab), ("ycbcr", rgb2ycbcr)])
def test_each_of_two_networks_sees_its_own_channels(space, theirs) -> None:
    """Lightness alone or colour alone, normalised with CMC's constants; their features lie side by side."""
    network, pixels = two(space, width=0.125), images(3)
    mean, std = (np.array(values) for values in CMC[space])
    channels = torch.from_numpy((theirs(pixels) - mean) / std).permute(0, 3, 1, 2)
    found = network(normalised(pixels))
    assert found.shape == (3, network.fc_features) == (3, 128)
    lightness, colour = network.networks
    torch.testing.assert_close(found[:, :64], lightness(channels[:, :1]), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(found[:, 64:], colour(channels[:, 1:]), atol=1e-9, rtol=1e-9)


def test_weights_of_one_network_are_refused(tmp_path) -> None:
    values = compose(tmp_path, "backbone=resnet18_lab", "dataset=cifar10")
    assert config.check(values).backbone.streams.mean == config.check(values).dataset.mean
    init = {"name": "torchvision:resnet18", "hash": "sha256:0"}
    with pytest.raises(ValueError, match="init=torchvision:resnet18 needs one network .*; choose init=null"):
        config.check({**values, "init": init})


def test_other_programs_do_not_get_two_networks(tmp_path) -> None:
    network = two("lab", width=0.125)
    composed = config.check(compose(tmp_path, "backbone=resnet18_lab")).backbone
    for name in ("torchvision", "detectron2"):
        with pytest.raises(ValueError, match=f"{name} supports only kind=resnet .*choose onnx"):
            formats.check_network(composed, name)
    with pytest.raises(ValueError, match="timm does not know the resnet18 .* two streams; choose onnx"):
        composed.in_timm()
    save_tensors(network.state_dict(), tmp_path / "backbone.safetensors", {})
    with pytest.raises(ValueError, match="holds the two networks of a backbone with streams"):
        foreign.load(str(tmp_path / "backbone.safetensors"))


def test_a_trained_backbone_is_loaded_in_eval_mode(tmp_path) -> None:
    described, file = tiny.config("test_resnet"), tmp_path / "a.safetensors"
    network, samples = backbones.build(described), torch.randn(2, 3, 64, 64)
    save_tensors(network.state_dict(), file, {})
    torch.testing.assert_close(backbones.load(described, file)(samples), network.eval()(samples))


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "vit"])
def test_a_network_to_fill_draws_no_random_numbers(name) -> None:
    """Which would take longer than reading the weights."""
    before = torch.get_rng_state()
    backbones.build_to_fill(tiny.config(name))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_that_gives_maps_or_tokens_is_refused() -> None:
    """As timm's encoders of language models, whose first number would be taken for the width."""
    tokens = nn.Sequential(nn.Conv2d(3, 7, 4, 4), nn.Flatten(2))
    with pytest.raises(ValueError, match=r"gives \[2, 7, 16\] for two images, expected two vectors"):
        backbones.check_size("tokens", tokens, 16, "dataset.crop")


@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize("name", ["resnet18", "vit", "test_convnext"])
def test_the_first_layer_for_rgb_is_inflated_to_bands(name, channels) -> None:
    """Each band gets the mean filter times 3 / C, so an image of equal bands gives what a gray one gave."""
    configs = {"resnet18": tiny.residual(width=0.125)} | {
        each: tiny.config(each) for each in ("vit", "test_convnext")
    }
    torch.manual_seed(0)
    rgb = backbones.build(configs[name]).eval()
    wider = configs[name].model_copy(update={"channels": channels})
    network = backbones.build(wider).eval()
    start.from_backbone(rgb, configs[name], {}).load_backbone(network, wider)
    (first, given), *others = (
        (key, tensor)
        for key, tensor in rgb.state_dict().items()
        if tensor.shape != network.state_dict()[key].shape
    )
    assert not others
    for number, filters in enumerate(network.state_dict()[first]):
        for band in filters:
            torch.testing.assert_close(
                band, (given[number, 0] + given[number, 1] + given[number, 2]) / channels
            )
    gray = torch.randn(2, 1, 64, 64)
    found, expected = (x(gray.expand(-1, n, -1, -1)) for x, n in ((network, channels), (rgb, 3)))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    back = backbones.build(configs[name].model_copy(update={"channels": 7}))
    if channels == 5:
        with pytest.raises(
            ValueError, match="init takes images of 5 channels, but the images have 7; choose"
        ):
            start.from_backbone(network, wider, {}).load_backbone(back, configs[name])
