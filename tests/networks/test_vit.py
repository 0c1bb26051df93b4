"""Vision transformers as in MoCo v3, and all others through timm."""

import math
from pathlib import Path

import pytest
import timm
import torch

from cl import config
from cl.networks import backbones
from cl.networks.backbones import Backbone, vit
from tests.support.project import compose


def network(tmp_path: Path, *overrides: str) -> Backbone:
    torch.manual_seed(0)
    return backbones.build(config.check(compose(tmp_path, *overrides)).backbone)


def test_positions_are_sines_and_cosines_of_both_coordinates() -> None:
    """MoCo v3, sec. 3 and its authors' code: 10000^(-i / (D / 4)), a quarter of the width for each wave."""
    side, width = 3, 8
    expected = []
    for one in range(side):
        for other in range(side):
            rates = [10000 ** (-i / (width / 4)) for i in range(width // 4)]
            waves = [(one, math.sin), (one, math.cos), (other, math.sin), (other, math.cos)]
            expected.append([wave(place * rate) for place, wave in waves for rate in rates])
    torch.testing.assert_close(vit.sines(side, width), torch.tensor(expected))


LARGER = [("vit_small", 21.7), ("vit_base", 85.8)]


@pytest.mark.parametrize(
    ("name", "millions"),
    [("vit_tiny", 5.5), *(pytest.param(*each, marks=pytest.mark.slow) for each in LARGER)],
)
def test_presets_have_the_papers_sizes_and_timms_tensors(name, millions, tmp_path) -> None:
    """22 and 86 million parameters (MoCo v3, Table 1)."""
    with torch.device("meta"):
        theirs = timm.create_model(f"{name}_patch16_224", num_classes=0)
    params = config.check(compose(tmp_path, f"backbone={name}", "dataset=imagenet", "views=mocov3"))
    with torch.device("meta"):
        ours = backbones.build(params.backbone)
    shapes = {key: tensor.shape for key, tensor in ours.state_dict().items()}
    assert shapes == {key: tensor.shape for key, tensor in theirs.state_dict().items()}
    assert sum(p.numel() for p in ours.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_weights_are_drawn_as_in_moco_v3(tmp_path) -> None:
    """Xavier's bounds, for each of queries, keys and values by itself; patches are projected at random."""
    ours = network(tmp_path, "backbone=vit_tiny_patch4")
    tensors, width = ours.state_dict(), 192
    bounds = {
        "blocks.3.attn.qkv.weight": 6 / (2 * width),
        "blocks.3.attn.proj.weight": 6 / (2 * width),
        "blocks.3.mlp.fc1.weight": 6 / (5 * width),
        "patch_embed.proj.weight": 6 / (3 * 4 * 4 + width),
    }
    for name, square in bounds.items():
        assert float(tensors[name].abs().max()) == pytest.approx(math.sqrt(square), rel=0.01), name
        assert float(tensors[name].std()) == pytest.approx(math.sqrt(square / 3), rel=0.02), name
    assert not any(tensor.any() for name, tensor in tensors.items() if name.endswith("bias"))
    assert 0 < tensors["cls_token"].std() < 2e-6
    frozen = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    assert frozen == {"pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    assert torch.equal(tensors["pos_embed"][0, 1:], vit.sines(8, width))
    assert not tensors["pos_embed"][0, 0].any()


@pytest.mark.parametrize(
    "name",
    [
        "mobilenetv3_small_050",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("test_convnext", "regnety_002")),
    ],
)
def test_features_have_the_width_that_the_network_gives(name, tmp_path) -> None:
    """Not what timm calls `num_features`: some networks have another layer after pooling."""
    ours = network(tmp_path, "backbone=timm", f"backbone.name={name}").eval()
    assert ours(torch.randn(2, 3, 32, 32)).shape == (2, ours.fc_features)
    theirs = timm.create_model(name, num_classes=0)
    assert ours.state_dict().keys() == theirs.state_dict().keys()


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("timm backbone.name=convnext_atoo", "convnext_atoo is not a network of timm; .* convnext_atto"),
        ("timm backbone.name=convnext_atto.d2_in1k", "choose convnext_atto, .* timm:convnext_atto.d2_in1k"),
        ("vit_tiny backbone.patch=5", "size=32 .* multiple of patch=5; choose 30 for dataset.crop"),
        ("vit_tiny backbone.heads=5", "width=192 must be a multiple of heads=5"),
        (
            "vit_tiny_patch4 views.random.size=30",
            r"patches of 4 px, .* does not take the images of 30 px from views.random .*; choose",
        ),
        (
            "timm backbone.name=test_convnext method=moco_v3 patches=fast",
            "does not take the images of 16 px from views.random, cut into patches",
        ),
        ("timm backbone.name=bat_resnext26ts transfer=[]", "bat_resnext26ts.* does not take the images"),
        ("vit_tiny_patch4 evaluations.linear.blocks=13", "blocks=13 needs .* found 12 .*; choose blocks=12"),
        ("timm evaluations.linear.blocks=4", "blocks=4 needs .* found 0 .*; choose blocks=null"),
        (
            "vit_tiny_patch4 evaluation=[oss_multi]",
            "evaluations.oss_multi.maps=true needs the stages of one .* choose another evaluation",
        ),
        (
            "vit_tiny_patch4 method=moco_v3 patches=fast patches.stage=stage2 patches.pairs=drawn",
            "patches.stage=stage2 needs the stages of one .* choose patches.stage=final",
        ),
        (
            "vit_tiny_patch4 transfer=[voc_c4]",
            "transfers.voc_c4.detector=faster_rcnn_c4 needs the stages of one .* backbone.kind=vit "
            r".* choose a transfer with a pyramid, such as transfer=\[voc_fpn\]",
        ),
        (
            "timm transfer=[coco_fpn]",
            "transfers.coco_fpn.engine=detectron2 needs kind=resnet .* backbone.kind=timm .*convnext_atto.*; "
            "choose transfers.coco_fpn.engine=torchvision",
        ),
        (
            "timm backbone.name=vit_small_patch14_dinov2 dataset.crop=28 views.random.size=28",
            r"transfers.voc_fpn needs .*\(it has maps of stride 14\); choose for",
        ),
        ("resnet18_lab transfer=[voc_c4]", r"voc_c4 needs one network .* two .*; choose transfer=\[\]"),
        ("timm backbone.name=mixer_s16_224", r"images of any size; .*mixer_s16_224.* \(Input height \(64\)"),
        (
            "timm backbone.name=test_efficientnet backbone.checkpointing=true",
            "checkpointing=true .* batch norm of .*; choose false",
        ),
        (
            "timm backbone.name=vgg11 backbone.drop_path=0.1",
            r"vgg11 does not take backbone.drop_path=0\.\d+ .*; choose 0",
        ),
    ],
)
def test_what_a_network_cannot_do_is_refused(backbone, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        compose(tmp_path, *f"backbone={backbone}".split())
