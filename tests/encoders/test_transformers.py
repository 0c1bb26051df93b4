"""Vision transformers from other programs' checkpoints: six layouts, other sizes, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cl.data.transform import Transform
from cl.encoders import foreign
from cl.networks import backbones
from cl.networks.backbones import timm, vit
from cl.training import start
from pipeline import evaluate
from tests.support import backbones as tiny
from tests.support import transformers as layouts
from tests.support.transformers import IMAGES, transformer

EXACT = {"rtol": 0, "atol": 1e-6}


def read(content: Any, folder: Path, **options: str) -> foreign.ForeignEncoder:
    torch.save(content, folder / "checkpoint.pth")
    return foreign.load(str(folder / "checkpoint.pth"), **options)


def state(**options: Any) -> dict[str, Tensor]:
    return transformer(**options).state_dict()


@torch.no_grad()
@pytest.mark.parametrize(
    ("layout", "options", "origin"),
    [
        (layouts.timm, {}, "names of torchvision or timm"),
        (layouts.timm, {"reg_tokens": 3, "no_embed_class": True}, "names of torchvision or timm"),
        (layouts.timm, {"no_embed_class": True, "init_values": 0.1}, "names of torchvision or timm"),
        (lambda state: state, {}, "names of torchvision or timm"),  # the backbone files of DINO and MAE
        (layouts.dino, {}, "the teacher of DINO or DINOv2"),
        (layouts.dinov2, {"init_values": 0.1}, "names of torchvision or timm"),
        (layouts.dinov2_teacher, {"init_values": 0.1}, "the teacher of DINO or DINOv2"),
        (layouts.moco_v3, {"num_heads": 12, "embed_dim": 192}, "MoCo v3"),
        (layouts.mae, {}, "names of torchvision or timm"),
    ],
)
def test_layouts_of_other_programs_are_read(layout, options, origin, tmp_path) -> None:
    theirs = transformer(**options)
    found = read(layout(theirs.state_dict()), tmp_path)
    torch.testing.assert_close(found.network(IMAGES), theirs(IMAGES), **EXACT)
    assert isinstance(found.config, vit.Config)
    assert (found.config.size, found.config.patch, found.config.depth) == (32, 8, 2)
    assert (found.config.width, found.config.heads) == (theirs.embed_dim, theirs.blocks[0].attn.num_heads)
    assert found.origin == origin
    assert not found.network.training
    assert found.network.fc_features == theirs.embed_dim


def test_the_student_of_dino_can_be_chosen(tmp_path) -> None:
    found = read(layouts.dino(state()), tmp_path, prefix="student.module.backbone.")
    assert not any(tensor.any() for tensor in found.network.state_dict().values())


@torch.no_grad()
def test_registers_of_dinov2_get_no_position(tmp_path) -> None:
    """Its code adds positions to the class token and the patches, and then puts registers between them."""
    theirs, registers = transformer(init_values=0.1), torch.randn(1, 4, 128)
    content = layouts.dinov2(theirs.state_dict()) | {"register_tokens": registers}
    tokens = torch.cat([theirs.cls_token.expand(2, -1, -1), theirs.patch_embed(IMAGES)], 1) + theirs.pos_embed
    tokens = torch.cat([tokens[:, :1], registers.expand(2, -1, -1), tokens[:, 1:]], 1)
    expected = theirs.norm(theirs.blocks(tokens))[:, 0]
    found = read(content, tmp_path)
    torch.testing.assert_close(found.network(IMAGES), expected, **EXACT)
    assert found.config.registers == 4


@torch.no_grad()
def test_a_norm_after_pooling_follows_the_average_over_patches(tmp_path) -> None:
    """MAE, fine-tuned: models_vit.py with global_pool."""
    sizes = {"embed_dim": 192, "depth": 12, "num_heads": 3, "patch_size": 16, "img_size": 64}
    theirs, images = transformer(**sizes, global_pool="avg"), torch.randn(2, 3, 64, 64)
    assert "norm.weight" not in theirs.state_dict()
    found = read({"model": theirs.state_dict()}, tmp_path)
    torch.testing.assert_close(found.network(images), theirs(images), **EXACT)
    assert found.config.title == "vit_tiny_patch16_224, for 64 px"
    theirs = transformer(**sizes | {"patch_size": 4}, global_pool="avg")
    with pytest.raises(
        ValueError, match="with 3 heads and patches of 4 px, expected 192 with 3, .*config.json"
    ):
        read({"model": theirs.state_dict()}, tmp_path)


def test_heads_are_those_of_the_width_unless_the_file_tells_otherwise(tmp_path) -> None:
    """12 with the positions of MoCo v3, whose linear evaluation saves no telling prefix."""
    theirs = transformer(embed_dim=192)
    assert read(theirs.state_dict(), tmp_path).config.heads == 3
    content = layouts.below("module.", layouts.with_sines(theirs).state_dict())
    assert read(content, tmp_path).config.heads == 12
    before = read(content, tmp_path)
    (tmp_path / "config.json").write_text('{"model_args": {"num_heads": 6, "global_pool": "avg"}}')
    found = read(content, tmp_path)
    assert (found.config.heads, found.config.pool) == (6, "average")
    assert before.sha256 != found.sha256, "the same tensors, but another encoder"


@torch.no_grad()
def test_heads_of_a_small_transformer_with_maes_positions_must_be_given(tmp_path) -> None:
    """MAE's tiny and small ones have 12 in solo-learn, and one per 64 features elsewhere."""
    theirs = layouts.with_sines(transformer(embed_dim=192, num_heads=12))
    theirs.pos_embed.copy_(theirs.pos_embed.roll(96, 2))  # MAE takes columns before rows
    with pytest.raises(ValueError, match='3 heads.* or 12.*{"num_heads": 12}.*config.json'):
        read(theirs.state_dict(), tmp_path)
    assert "heads" in foreign.load(f"{tmp_path}/checkpoint.pth", exact=False).deviation
    (tmp_path / "config.json").write_text('{"model_args": {"num_heads": 12}}')
    found = read(theirs.state_dict(), tmp_path)
    torch.testing.assert_close(found.network(IMAGES), theirs(IMAGES), **EXACT)
    assert not found.deviation


def resized(positions: Tensor, side: int) -> Tensor:
    """Positions (1, 1 + P, D) for side x side patches, by Pillow: bicubic, each feature is an image."""
    old = round((positions.shape[1] - 1) ** 0.5)
    maps = positions[0, 1:].T.reshape(-1, old, old).numpy()
    maps = [np.asarray(Image.fromarray(x).resize((side, side), Image.Resampling.BICUBIC)) for x in maps]
    return torch.cat([positions[0, :1], torch.from_numpy(np.stack(maps, -1)).reshape(side**2, -1)])[None]


@torch.no_grad()
@pytest.mark.parametrize("size", [16, 24, 48])
def test_positions_are_interpolated_to_another_size(size, tmp_path) -> None:
    """In evaluations when the images come, in pretraining when `init` fills a backbone of that size."""
    tensors, images = state(), torch.randn(2, 3, size, size)
    theirs = transformer(img_size=size)
    theirs.load_state_dict(tensors | {"pos_embed": resized(tensors["pos_embed"], size // 8)})
    found = read(layouts.timm(tensors), tmp_path)
    expected = theirs(images)
    torch.testing.assert_close(found.network(images), expected, rtol=1e-4, atol=1e-4)
    config = found.config.model_copy(update={"size": size})
    network = backbones.build(config).eval()
    start.from_backbone(found.network, found.config, {}).load_backbone(network, config)
    assert network.pos_embed.shape == (1, 1 + (size // 8) ** 2, 128)
    torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-4)


def test_positions_without_a_grid_need_the_size_of_init() -> None:
    named = tiny.TIMM | {"kind": "timm", "name": "hiera_tiny_224"}
    given, wanted = (timm.Config.model_validate(named | {"size": size}) for size in (224, 96))
    with pytest.raises(ValueError, match="in pos_embed: .*choose the size of images that init was trained"):
        start.from_backbone(given.outline(), given, {}).load_backbone(wanted.outline(), wanted)


def test_images_of_a_wrong_size_are_refused_before_anything_is_computed(tmp_path) -> None:
    torch.save(state(), tmp_path / "a.pth")
    images = Transform(resize=48, crop=48, mean=(0.5,) * 3, std=(0.5,) * 3, upright=True)
    encoder, notes = evaluate.load_foreign(f"{tmp_path}/a.pth", None, images)
    assert (notes["config"]["kind"], encoder.backbone.fc_features) == ("vit", 128)
    refused = r"a.pth, a transformer .* not take the images of 30 px from dataset.crop \(.*\(8\)\); choose"
    with pytest.raises(ValueError, match=refused):
        evaluate.load_foreign(f"{tmp_path}/a.pth", None, images.model_copy(update={"crop": 30}))


def test_evaluate_says_that_an_encoder_knows_images_of_another_normalisation(tmp_path, capsys) -> None:
    """Features of EfficientNet-Lite0 normalised as ImageNet usually is lose a tenth of its accuracy."""
    description = {"architecture": "resnet18", "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    (tmp_path / "config.json").write_text(json.dumps(description))
    torch.save(state(), tmp_path / "a.pth")
    for mean, expected in ((0.5, False), (0.485, True)):
        images = Transform(resize=32, crop=32, mean=(mean,) * 3, std=(0.25,) * 3, upright=True)
        evaluate.load_foreign(f"{tmp_path}/a.pth", None, images)
        printed = capsys.readouterr().err
        assert ("dataset.mean=[0.5,0.5,0.5]" in printed.replace("\n", "")) is expected, printed


def without(*names: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state().items() if name not in names}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            lambda: without("patch_embed.proj.weight"),
            "patches are not projected by one convolution; expected",
        ),
        (lambda: without("cls_token"), "without a class token and positions; .* give timm:<name>, or put"),
        (lambda: state() | {"blocks.0.mlp.w12.weight": torch.ones(4, 4)}, "with SwiGLU, like DINOv2's"),
        (lambda: state() | {"pos_embed": torch.ones(1, 13, 128)}, "for images that are not square"),
        (lambda: state(qk_norm=True), r"has blocks.0.attn.k_norm.bias, .* \(and 7 more differences\)"),
        (lambda: state() | {"dist_token": torch.ones(1, 1, 128)}, "with a distillation token, like DeiT's"),
        (lambda: without("blocks.1.norm2.bias"), "lacks blocks.1.norm2.bias; for another network of timm"),
        (lambda: state(mlp_ratio=3), r"fc1.bias of shape \[384\], expected \[512\] \(and 5 more differences"),
        (lambda: layouts.moco_v3(state()), "width 128, which 12 heads do not divide; .* config.json"),
        (
            lambda: layouts.below("one.", state()) | layouts.below("two.", state()),
            "should hold one .*, found those below 'one.', 'two.'; choose one with --prefix",
        ),
        (
            lambda: {"layers.0.blocks.0.attn.qkv.weight": torch.ones(3, 3)},  # as in Swin
            "should hold one residual network .*; for another network of timm, put",
        ),
    ],
)
def test_other_transformers_are_refused_in_one_sentence(content, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read(content(), tmp_path)
    assert "\n" not in str(error.value)
