"""Exports: other libraries read them and compute the same features."""

from pathlib import Path

import pytest
import torch
from torch import nn

import cl
from cl import config
from cl.data.transform import Transform
from cl.encoders import foreign, formats
from cl.networks import backbones
from cl.networks.backbones import BackboneConfig
from cl.runtime.tensor_files import load_tensors
from tests.support.backbones import residual
from tests.support.project import compose
from tests.support.resnets import IMAGES, detectron2_network, features

KINDS = [
    ("resnet18", 1, "imagenet"),
    ("resnet18", 1, "small"),
    ("resnet50", 1, "imagenet"),
    ("resnet18", 0.25, "small"),
    ("resnet50", 0.125, "imagenet"),
    ("resnet10", 1, "imagenet"),
]


def ours(kind: str = "resnet18", width: float = 1, stem: str = "imagenet") -> nn.Module:
    torch.manual_seed(0)
    network = backbones.build(residual(kind, stem, width=width))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 1.5)
    return network.eval()


@pytest.mark.parametrize(("kind", "width", "stem"), KINDS)
def test_a_safetensors_export_is_read_back_unchanged(kind, width, stem, tmp_path) -> None:
    network = ours(kind, width, stem)
    path = tmp_path / "new/out.safetensors"
    formats.write(network, "torchvision", path, 64, {"transform": "1"})
    found = foreign.load(str(path))
    assert (found.config.name, found.config.width, found.config.stem) == (kind, width, stem)
    torch.testing.assert_close(found.network.state_dict(), network.state_dict(), rtol=0, atol=0)
    assert load_tensors(path)[1] == {"transform": "1"}
    assert [file.name for file in path.parent.iterdir()] == ["out.safetensors"]


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_torchvision_reads_an_export(kind, tmp_path) -> None:
    import torchvision

    network = ours(kind)
    formats.write(network, "torchvision", tmp_path / "out.safetensors", 64, {})
    tensors, _ = load_tensors(tmp_path / "out.safetensors")
    theirs = torchvision.models.get_model(kind)
    missing = theirs.load_state_dict(tensors, strict=False)
    assert missing == (["fc.weight", "fc.bias"], [])
    torch.testing.assert_close(features(theirs.eval()), network(IMAGES))


BACKBONES = {
    "resnet18": "resnet18",
    "transformer": "vit_tiny_patch4 backbone.registers=2 backbone.layer_scale=0.1",
    "convnext": "timm backbone.name=test_convnext",
    "averaged": "timm backbone.name=test_vit backbone.pool=average backbone.drop_path=0.1",
}


def composed(backbone: str, folder: Path) -> tuple[BackboneConfig, nn.Module]:
    params = config.check(compose(folder, *f"backbone={backbone} transfer=[]".split()))
    return params.backbone, backbones.build(params.backbone).eval()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "convnext")) for name in BACKBONES]
)
def test_timm_builds_and_fills_the_network_of_a_folder(name, tmp_path) -> None:
    """With our transform; and so do we."""
    import timm

    backbone, network = composed(BACKBONES[name], tmp_path)
    transform = Transform(resize=36, crop=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), upright=True)
    folder, images = tmp_path / "folder", torch.randn(2, 3, 32, 32)
    description = formats.describe(backbone, network.fc_features, transform)
    metadata = {"network": backbone.model_dump_json(), "transform": transform.model_dump_json()}
    for _ in range(2):  # an earlier export is replaced
        formats.write_folder(network, folder, description, metadata)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    torch.testing.assert_close(theirs(images), network(images))
    theirs_transform = timm.data.resolve_model_data_config(theirs)
    assert theirs_transform["input_size"][1] == 32
    assert theirs_transform["crop_pct"] == pytest.approx(32 / 36)
    assert tuple(theirs_transform["mean"]) == transform.mean
    assert tuple(theirs_transform["std"]) == transform.std
    found = cl.load(folder / "model.safetensors")
    torch.testing.assert_close(found(images), network(images))
    assert found.transform == transform


def test_timm_resizes_as_we_do() -> None:
    """It rounds the quotient of crop and crop_pct down."""
    for resize in range(1, 513):
        for crop in range(1, resize + 1):
            share = formats.crop_share(crop, resize)
            assert int(crop / share) == resize
            assert share == pytest.approx(crop / resize, rel=1e-15)
    assert formats.crop_share(224, 256) == 224 / 256


def test_networks_that_timm_lacks_are_refused() -> None:
    transform = Transform(resize=32, crop=32, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2), upright=True)
    for kind, width, stem in (KINDS[1], *KINDS[3:]):
        with pytest.raises(ValueError, match=f"{kind} of width {width} with {stem} stem; choose torch"):
            formats.describe(residual(kind, stem, width=width), 512, transform)


def test_a_killed_export_is_continued_and_never_mixes_two_encoders(tmp_path) -> None:
    first, second = (residual(kind, "imagenet") for kind in ("resnet18", "resnet10"))
    formats.write_folder(backbones.build(first), tmp_path, {"of": "first"}, {})
    unwritable = {"bytes": b""}  # ends the call where the weights are written
    with pytest.raises(TypeError):
        formats.write_folder(backbones.build(second), tmp_path, {"of": "second"}, unwritable)
    assert [path.name for path in tmp_path.glob("[!m]*")] == []
    (tmp_path / "model.safetensors.x.partial").mkdir()
    (tmp_path / "model.safetensors.x.partial/tensors").touch()
    (tmp_path / "config.json.0123.partial").touch()
    formats.write_folder(backbones.build(second), tmp_path, {"of": "second"}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert "second" in (tmp_path / "config.json").read_text()


def test_a_folder_with_other_files_is_left_alone(tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="has other files, for example thesis.tex; give --to a new"):
        formats.write_folder(ours(), tmp_path, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("resnet18", ""),
        pytest.param("transformer", "backbone.depth=2", marks=pytest.mark.slow),
        pytest.param("convnext", "", marks=pytest.mark.slow),
    ],
)
def test_onnxruntime_runs_an_export_at_any_batch_size(name, depth, tmp_path) -> None:
    import onnxruntime

    _, network = composed(f"{BACKBONES[name]} {depth}", tmp_path)
    formats.write(network, "onnx", tmp_path / "out.onnx", 32, {})
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    for images in (torch.randn(2, 3, 32, 32), torch.randn(5, 3, 32, 32)):
        (found,) = session.run(["features"], {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), network(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_detectron2_reads_an_export(kind, tmp_path) -> None:
    pytest.importorskip("detectron2", reason="detectron2 must be compiled; see docs/detection.md")
    network = ours(kind)
    formats.write(network, "detectron2", tmp_path / "out.pkl", 64, {})
    with torch.no_grad():
        torch.testing.assert_close(
            detectron2_network(tmp_path / "out.pkl", kind)(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-5
        )


def test_networks_that_detectron2_lacks_are_refused() -> None:
    for kind, width, stem in (KINDS[1], *KINDS[3:]):
        with pytest.raises(ValueError, match="detectron2's ResNet needs a 7x7 stem, 64 channels"):
            formats.check_network(residual(kind, stem, width=width), "detectron2")
