"""Networks that a description of timm names: folders, checkpoints of its training, published weights."""

import json

import pytest
import timm
import torch
from timm.models import save_for_hf
from torch import Tensor, nn

import cl
from cl.encoders import foreign
from cl.encoders.encoder import IMAGENET
from cl.runtime.tensor_files import licence
from cl.training import start
from tests.support import backbones as tiny
from tests.support.resnets import narrow
from tests.support.transformers import below, randomised
from tests.support.transformers import transformer as plain_transformer

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def network(name: str, **options: object) -> nn.Module:
    """With a classifier and running statistics that differ from the usual ones."""
    built = randomised(timm.create_model(name, **options))
    for module in built.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 1.5)
    return built


def pooled(theirs: nn.Module, images: Tensor = IMAGES) -> Tensor:
    """The input of the classifier, by timm's own functions."""
    with torch.no_grad():
        return theirs.forward_head(theirs.forward_features(images), pre_logits=True)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("test_efficientnet", {"num_classes": 0}),
        ("test_vit", {"img_size": 64}),
        pytest.param("test_vit", {"img_size": 64, "global_pool": "avg"}, marks=pytest.mark.slow),
        pytest.param("test_vit2", {"img_size": 64}, marks=pytest.mark.slow),
    ],
)
def test_folders_of_timm_are_read(name, options, tmp_path) -> None:
    """With other kinds of networks, other numbers of heads, no class token."""
    theirs = network(name, **options)
    save_for_hf(theirs, str(tmp_path), safe_serialization=True)
    found = foreign.load(f"{tmp_path}/model.safetensors")
    assert (found.config.kind, found.config.name) == ("timm", name)
    torch.testing.assert_close(found.network(IMAGES), pooled(theirs), rtol=0, atol=1e-6)
    assert licence(found.metadata) == "apache-2.0"
    assert not found.network.training
    normalisation = {"mean": theirs.pretrained_cfg["mean"], "std": theirs.pretrained_cfg["std"]}
    loaded = cl.load(tmp_path / "model.safetensors")
    assert loaded.transform == IMAGENET.model_copy(update=normalisation)
    assert not loaded.records_size
    described = json.loads((tmp_path / "config.json").read_text())
    described["pretrained_cfg"] = {}
    (tmp_path / "config.json").write_text(json.dumps(described))
    usual = timm.create_model(name).pretrained_cfg
    found = cl.load(tmp_path / "model.safetensors").transform
    assert (found.mean, found.std) == (usual["mean"], usual["std"]), "timm's for this architecture"
    (tmp_path / "config.json").write_text(json.dumps(described | {"mean": [0.1] * 3, "std": [0.2] * 3}))
    assert cl.load(tmp_path / "model.safetensors").transform.mean == (0.1, 0.1, 0.1), "timm's older files"


TINY = "vit_tiny_patch16_224"


@pytest.mark.parametrize(
    ("name", "options", "refused"),
    [
        ("resnet18", {"global_pool": "max"}, "global_pool='max'"),
        ("resnet18", {"output_stride": 16}, "output_stride=16"),
        ("resnet18", {"act_layer": "silu"}, "act_layer='silu'"),
        ("resnet18", {"in_chans": 2}, ""),
        ("resnet18", {"zero_init_last": False, "drop_block_rate": 0.1}, ""),
        ("test_convnext", {"global_pool": "max"}, "global_pool='max'"),
        ("test_convnext", {"in_chans": 2}, ""),
        ("test_convnext", {"conv_mlp": True}, "conv_mlp=True"),
        (TINY, {"global_pool": "max"}, "global_pool='max'"),
        (TINY, {"global_pool": "avgmax", "num_heads": 3}, "global_pool='avgmax'"),
        (TINY, {"act_layer": "quick_gelu"}, "act_layer='quick_gelu'"),
        (TINY, {"global_pool": "avg", "pool_include_prefix": True}, "pool_include_prefix=True"),
        (TINY, {"global_pool": "avg", "num_heads": 12}, "12 heads"),
        (TINY, {"fc_norm": True}, "fc_norm=True"),
        (TINY, {"mlp_ratio": 3}, "mlp_ratio=3"),
        (TINY, {"class_token": False, "global_pool": "avg"}, "class_token=False"),
        (TINY, {"mlp_ratio": 4, "class_token": True}, ""),
        (TINY, {"embed_dim": 384}, ""),
        (TINY, {"in_chans": 2}, ""),
        (TINY, {"num_heads": 12, "global_pool": "avg", "fc_norm": False}, ""),
        (TINY, {"patch_size": 8, "depth": 2, "init_values": 0.1}, ""),
        (TINY, {"reg_tokens": 4, "no_embed_class": True}, ""),
        (TINY, {"no_embed_class": True, "proj_drop_rate": 0.1}, ""),
    ],
)
def test_arguments_of_timm_are_followed_or_refused_by_name(name, options, refused, tmp_path) -> None:
    if name == TINY:
        options = {"img_size": 64, "depth": 2} | options
    channels = options.get("in_chans") or 3
    theirs = network(name, **options | {"in_chans": channels})
    save_for_hf(theirs, str(tmp_path), model_args=options, safe_serialization=True)
    if refused:
        with pytest.raises(ValueError, match=refused):
            foreign.load(f"{tmp_path}/model.safetensors")
    else:
        found = foreign.load(f"{tmp_path}/model.safetensors").network(IMAGES[:, :channels])
        torch.testing.assert_close(found, pooled(theirs, IMAGES[:, :channels]), rtol=0, atol=1e-5)


def test_a_checkpoint_of_timms_training_names_its_network(tmp_path) -> None:
    """train.py saves the architecture; a network in several processes has a prefix."""
    theirs = network("test_convnext")
    content = {"epoch": 1, "arch": "test_convnext", "state_dict": below("module.", theirs.state_dict())}
    torch.save(content, tmp_path / "last.pth.tar")
    found = foreign.load(f"{tmp_path}/last.pth.tar")
    torch.testing.assert_close(found.network(IMAGES), pooled(theirs), rtol=0, atol=1e-6)
    config = tiny.config("test_efficientnet")
    with pytest.raises(ValueError, match="a test_convnext, but backbone is a test_efficientnet;"):
        start.from_backbone(found.network, found.config, {}).load_backbone(found.network, config)


def test_a_checkpoints_architecture_may_lack_the_size_of_images_and_the_pooling(tmp_path) -> None:
    """Unlike a description beside it, which must fit."""
    theirs = network("vit_tiny_patch16_224", img_size=64, global_pool="avg")
    torch.save({"arch": "vit_tiny_patch16_224", "state_dict": theirs.state_dict()}, tmp_path / "a.pth")
    found = foreign.load(f"{tmp_path}/a.pth")
    torch.testing.assert_close(found.network(IMAGES), pooled(theirs), rtol=0, atol=1e-5)
    (tmp_path / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    with pytest.raises(ValueError, match="224 px: it "):
        foreign.load(f"{tmp_path}/a.pth")


def test_a_head_of_another_program_is_left_out(tmp_path) -> None:
    """MoCo's, in place of the classifier, of a network that only its name describes."""
    theirs = network("test_resnet", num_classes=0)
    tensors = theirs.state_dict() | {"fc.0.weight": torch.zeros(8, 8), "fc.2.weight": torch.zeros(8, 8)}
    torch.save({"arch": "test_resnet", "state_dict": below("module.encoder_q.", tensors)}, tmp_path / "a.pth")
    found = foreign.load(f"{tmp_path}/a.pth")
    torch.testing.assert_close(found.network(IMAGES), pooled(theirs), rtol=0, atol=1e-6)


def test_a_description_of_another_network_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"architecture": "test_convnext"}')
    torch.save(network("test_efficientnet").state_dict(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match="one test_convnext, .*, found tensors such as conv_"):
        foreign.load(f"{tmp_path}/a.pth")
    torch.save(network("test_convnext2").state_dict(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match="not a test_convnext, .*: it has .*put timm's config"):
        foreign.load(f"{tmp_path}/a.pth")


def test_a_description_that_timm_cannot_build_gives_way_to_the_tensors(tmp_path) -> None:
    """Other arguments than a name: the number of heads and pooling still count."""
    theirs = plain_transformer(num_heads=4, global_pool="avg", fc_norm=False)
    arguments = {"embed_dim": 128, "num_heads": 4, "global_pool": "avg", "fc_norm": False}
    description = {"architecture": "vit_tiny_patch16_224", "model_args": arguments}
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    for text in (
        json.dumps(description),
        json.dumps({"model_args": arguments, "architectures": ["ViTModel"]}),
    ):
        (tmp_path / "config.json").write_text(text)
        found = foreign.load(f"{tmp_path}/a.pth")
        assert found.config.kind == "vit"
        with torch.no_grad():
            torch.testing.assert_close(found.network(IMAGES[..., :32, :32]), theirs(IMAGES[..., :32, :32]))
    (tmp_path / "config.json").unlink()
    torch.save({"arch": "vit_tiny_patch16_224", "model": narrow().state_dict()}, tmp_path / "b.pth")
    assert cl.load(tmp_path / "b.pth").transform == IMAGENET, "not that of a network that it is not"
    for unrelated in ("[1, 2]", "not JSON", '{"model_args": [1]}', '{"architecture": [1]}'):
        (tmp_path / "config.json").write_text(unrelated)
        assert foreign.load(f"{tmp_path}/a.pth").config.heads == 2
