"""torchvision's detectors on a pretrained backbone: their parts, gradients and learning rates."""

from pathlib import Path

import pytest
import torch
from torch import nn

from cl.config import Params
from cl.detection.config import Config
from cl.detection.data import read
from cl.detection.engines import engine
from cl.detection.engines.torchvision import Detector
from cl.detection.samples import sample
from cl.detection.transfer import build_optimizer
from cl.training.optim import set_lr
from pipeline.support.locations import transform
from tests.support.detection import FPN, build_backbone, small
from tests.support.detectron2 import installed


def build(config: Config, params: Params, scenes_folder: Path) -> Detector:
    return Detector(config, build_backbone(), read(config, scenes_folder), transform(params.dataset))


@pytest.mark.parametrize("name", ["voc_c4", "coco_c4"])
def test_c4_takes_over_the_backbone_and_shares_res5(params, scenes_folder, name) -> None:
    config = small(params, name)
    network = build(config, params, scenes_folder).network
    expected = build_backbone().state_dict()
    for theirs, ours in (("conv1", "conv1"), ("layer1", "res2"), ("layer3", "res4")):
        for key, tensor in network.backbone.get_submodule(ours).state_dict().items():
            assert torch.equal(tensor, expected[f"{theirs}.{key}"])
    for key, tensor in network.roi_heads.box_head[0].res5.state_dict().items():
        assert torch.equal(tensor, expected[f"layer4.{key}"])
    if config.masks:
        assert network.roi_heads.mask_head.shared is network.roi_heads.box_head[0]


def test_fpn_has_the_parts_of_the_paper(params, scenes_folder) -> None:
    """P2 to P6 with one anchor side each; a head of four 3x3 convolutions with norm and a linear layer."""
    network = build(small(params, **FPN), params, scenes_folder).network
    levels = network.backbone(torch.zeros(2, 3, 128, 128)).values()
    assert [tuple(level.shape) for level in levels] == [(2, 256, side, side) for side in (32, 16, 8, 4, 2)]
    assert network.rpn.anchor_generator.sizes == ((16,), (32,), (64,), (128,), (256,))
    assert network.rpn.anchor_generator.num_anchors_per_location() == [3] * 5
    head = list(network.roi_heads.box_head.modules())
    convolutions = [m for m in head if isinstance(m, nn.Conv2d)]
    assert [(m.in_channels, m.out_channels, m.kernel_size) for m in convolutions] == [(256, 256, (3, 3))] * 4
    assert [m.out_features for m in head if isinstance(m, nn.Linear)] == [1024]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in head) == 4
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.backbone.fpn.modules()) == 8
    assert network.roi_heads.box_roi_pool.featmap_names == ["0", "1", "2", "3"]


@pytest.mark.parametrize("changes", [FPN, {}])
def test_every_layer_is_trained(scenes_folder, params, changes) -> None:
    config = small(params, **changes)
    detector = build(config, params, scenes_folder).train()
    records = read(config, scenes_folder).train[:2]
    items = [detector.item(sample(record, 96, 256, mirrored=False)) for record in records]
    losses = detector(items)
    assert set(losses) >= {"loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"}
    assert ("loss_mask" in losses) == config.masks
    sum(losses.values()).backward()
    untrained = [name for name, p in detector.named_parameters() if p.grad is None or not p.grad.any()]
    assert untrained == []
    assert all(p.grad.isfinite().all() for p in detector.parameters())


@pytest.mark.parametrize(("changes", "slow"), [({}, "network.backbone."), (FPN, "network.backbone.body.")])
def test_pretrained_layers_have_a_separate_learning_rate(params, scenes_folder, changes, slow) -> None:
    """A tenth for stem to res4 of C4 (not res5) and for stem to res5 of FPN (not the pyramid)."""
    config = small(params, backbone_lr=0.1, **changes)
    detector = build(config, params, scenes_folder)
    optimizer = build_optimizer(detector, config)
    set_lr(optimizer, 0.01, 0.5)
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    assert len(groups) == len(list(detector.parameters()))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(groups)
    for name, parameter in detector.named_parameters():
        norm = isinstance(detector.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d)
        assert groups[parameter]["lr"] == pytest.approx(0.0005 if name.startswith(slow) else 0.005), name
        assert groups[parameter]["weight_decay"] == (0 if norm else config.weight_decay), name


@pytest.mark.skipif(installed, reason="detectron2 is installed")
def test_an_engine_that_is_not_installed_is_refused() -> None:
    with pytest.raises(ValueError, match="detectron2 is not installed; .*, or choose engine=torchvision"):
        engine("detectron2")
