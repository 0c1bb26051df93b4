"""Detectors with a pyramid on the backbones of today."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from cl.config import Params
from cl.detection.data import read
from cl.detection.engines import _pyramids
from cl.detection.engines.torchvision import Detector
from cl.detection.samples import sample
from cl.detection.transfer import Detection, build_optimizer, estimate_statistics
from cl.networks.batch_norm import has_batch_norm
from pipeline.support.locations import transform
from tests.support.backbones import HIERARCHICAL, PLAIN, build
from tests.support.detection import FPN, small, tuned

BATCH_NORM = {"test_efficientnet", "test_resnet", "regnetx_002"}


def detector(name: str, params: Params, scenes_folder: Path, **changes: object) -> Detector:
    settings = small(params, "voc_c4", **FPN, **changes)
    return Detector(settings, build(name), read(settings, scenes_folder), transform(params.dataset))


SLOW = ("test_convnext", "test_resnet", "regnetx_002", "test_vit")  # others of their kinds are fast


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in HIERARCHICAL | PLAIN],
)
def test_every_backbone_feeds_a_detector_that_trains(params, scenes_folder, name) -> None:
    """Sides of 70 px, which no stride divides; levels of strides 4 to 64; gradients down to the stem."""
    network = detector(name, params, scenes_folder)
    levels = network.network.backbone(torch.randn(2, 3, 96, 64)).values()
    expected = [(2, 256, -(-96 // stride), -(-64 // stride)) for stride in (4, 8, 16, 32, 64)]
    assert [tuple(level.shape) for level in levels] == expected
    records = read(small(params, "voc_c4"), scenes_folder).train[:2]
    losses = network.train()([network.item(sample(record, 70, 256, mirrored=False)) for record in records])
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    gradients = [p.grad for p in network.parameters() if p.requires_grad]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    first = next(p for p in network.pretrained.parameters() if p.requires_grad)
    assert all(p.grad.any() for p in [first, *network.network.backbone.fpn.parameters()])
    picture = Image.fromarray(np.zeros((67, 101, 3), np.uint8))
    boxes = network.eval().detect(picture).boxes
    assert (boxes >= 0).all()
    assert (boxes <= [101, 67, 101, 67]).all()


@pytest.mark.parametrize("name", HIERARCHICAL | PLAIN)
def test_batch_norm_is_used_where_the_backbone_has_it(params, here, scenes_folder, name) -> None:
    """Elsewhere layer norm is, and there are no statistics to estimate; no norm has weight decay."""
    settings = small(params, "voc_c4", **FPN)
    network = detector(name, params, scenes_folder)
    assert has_batch_norm(network) == has_batch_norm(network.network.backbone.fpn) == (name in BATCH_NORM)
    assert has_batch_norm(network.network.roi_heads) == (name in BATCH_NORM)
    if name not in BATCH_NORM:
        estimate_statistics(Detection(network, here, 0), None, settings)  # type: ignore[arg-type]
    groups = build_optimizer(network, settings).param_groups
    decayed = {p for group in groups for p in group["params"] if group["weight_decay"]}
    norms = [m for m in network.modules() if isinstance(m, (nn.LayerNorm, nn.BatchNorm2d))]
    assert norms
    assert not decayed & {p for norm in norms for p in norm.parameters()}


def normed(x: Tensor, layer: nn.Module) -> Tensor:
    """Layer norm over the channels of each place, as in ViTDet: epsilon 1e-6."""
    centred = x - x.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
    return scaled * layer.weight[:, None, None] + layer.bias[:, None, None]


def test_the_simple_pyramid_is_vitdets() -> None:
    """On a map of stride 16 (Li et al. 2022, sec. 3): scales 4, 2, 1, 1 / 2, then 1x1 and 3x3 with norm."""
    torch.manual_seed(0)
    norm = _pyramids.norm_for(build("vit"))
    pyramid = _pyramids.SimplePyramid(16, 24, norm).double()
    for parameter in pyramid.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 24, 6, 4, dtype=torch.float64)
    p2, p3, p4, p5 = pyramid.levels

    def doubled(x: Tensor, layer: nn.Module) -> Tensor:
        """Each place becomes 2 x 2 places, each with its own matrix."""
        n, _, height, width = x.shape
        cells = torch.einsum("nchw,cdij->ndhiwj", x, layer.weight)
        return cells.reshape(n, -1, 2 * height, 2 * width) + layer.bias[:, None, None]

    maps = [
        doubled(F.gelu(normed(doubled(x, p2[0]), p2[1])), p2[3]),
        doubled(x, p3[0]),
        x,
        torch.stack([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]).amax(0),
    ]
    expected = []
    for level, scaled in zip((p2, p3, p4, p5), maps, strict=True):
        narrow = normed(torch.einsum("nchw,dc->ndhw", scaled, level[-2][0].weight[:, :, 0, 0]), level[-2][1])
        assert level[-1][0].weight.shape == (256, 256, 3, 3)
        expected.append(normed(F.conv2d(narrow, level[-1][0].weight, padding=1), level[-1][1]))
    expected.append(expected[-1][:, :, ::2, ::2])  # P6
    found = pyramid({"0": x})
    assert list(found) == ["0", "1", "2", "3", "pool"]
    for ours, theirs in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16, 32])
def test_the_simple_pyramid_has_the_same_strides_for_every_patch(stride) -> None:
    pyramid = _pyramids.SimplePyramid(stride, 16, _pyramids.norm_for(build("vit")))
    levels = pyramid({"0": torch.randn(1, 16, 64 // stride, 128 // stride)}).values()
    assert [tuple(level.shape[2:]) for level in levels] == [(16, 32), (8, 16), (4, 8), (2, 4), (1, 2)]


@pytest.mark.parametrize("name", ["test_efficientnet", pytest.param("vit", marks=pytest.mark.slow)])
def test_a_transfer_runs_to_its_metrics(params, scenes_folder, tmp_path, name) -> None:
    settings = small(
        params,
        "voc_c4",
        **FPN,
        train_sides=[64],
        test_side=64,
        momentum=0,
        betas=(0.9, 0.999),
        base_lr=1e-4,
    )
    data = read(settings, scenes_folder)
    metrics = tuned(settings, build(name), data, transform(params.dataset), out=tmp_path)
    assert set(metrics) == {"ap50", "ap75", "ap"}
    assert (tmp_path / "detections.png").is_file()
