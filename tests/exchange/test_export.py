"""Exports: other libraries read them and compute the same features."""

import pytest
import torch
from torch import nn

from cl.exchange import export, foreign
from cl.networks import backbones
from cl.networks.backbones.resnet import Config
from cl.runtime.tensor_files import load_tensors
from tests.support.resnets import IMAGES, detectron2_network, features

KINDS = [
    ("resnet18", 1, "imagenet"),
    ("resnet18", 1, "small"),
    ("resnet50", 1, "imagenet"),
    ("resnet18", 2, "imagenet"),
]


def ours(kind: str = "resnet18", width: int = 1, stem: str = "imagenet") -> nn.Module:
    torch.manual_seed(0)
    network = backbones.build(
        Config(kind="resnet", name=kind, width=width, stem=stem, zero_init_residual=False)
    )  # type: ignore[arg-type]
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 1.5)
    return network.eval()


@pytest.mark.parametrize(("kind", "width", "stem"), KINDS)
def test_a_safetensors_export_is_read_back_unchanged(kind, width, stem, tmp_path) -> None:
    network = ours(kind, width, stem)
    path = tmp_path / "new/out.safetensors"
    export.write(network, "torchvision", path, 64, {"mean": "1"})
    found = foreign.load(str(path))
    assert (found.config.name, found.config.width, found.config.stem) == (kind, width, stem)
    assert all(
        torch.equal(value, network.state_dict()[name]) for name, value in found.network.state_dict().items()
    )
    assert load_tensors(path)[1] == {"mean": "1"}
    assert [file.name for file in path.parent.iterdir()] == ["out.safetensors"]


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_torchvision_and_timm_read_an_export(kind, tmp_path) -> None:
    import timm
    import torchvision

    network = ours(kind)
    export.write(network, "timm", tmp_path / "out.safetensors", 64, {})
    tensors, _ = load_tensors(tmp_path / "out.safetensors")
    theirs = torchvision.models.get_model(kind)
    missing = theirs.load_state_dict(tensors, strict=False)
    assert missing == (["fc.weight", "fc.bias"], [])
    torch.testing.assert_close(features(theirs.eval()), network(IMAGES))
    theirs = timm.create_model(kind, num_classes=0)
    theirs.load_state_dict(tensors)
    torch.testing.assert_close(theirs.eval()(IMAGES), network(IMAGES))


@pytest.mark.parametrize(("kind", "width", "stem"), [KINDS[1]])
def test_onnxruntime_runs_an_export_at_any_batch_size(kind, width, stem, tmp_path) -> None:
    import onnxruntime

    network = ours(kind, width, stem)
    export.write(network, "onnx", tmp_path / "out.onnx", 64, {})
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    for images in (IMAGES, torch.randn(5, 3, 64, 64)):
        (found,) = session.run(["features"], {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), network(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_detectron2_reads_an_export(kind, tmp_path) -> None:
    pytest.importorskip("detectron2", reason="detectron2 must be compiled; see docs/detection.md")
    network = ours(kind)
    export.write(network, "detectron2", tmp_path / "out.pkl", 64, {})
    with torch.no_grad():
        torch.testing.assert_close(
            detectron2_network(tmp_path / "out.pkl", kind)(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-5
        )


def test_networks_that_detectron2_lacks_are_refused(tmp_path) -> None:
    for kind, width, stem in (KINDS[1], KINDS[3]):
        with pytest.raises(ValueError, match="detectron2's ResNet needs a 7x7 stem and 64 channels"):
            export.write(ours(kind, width, stem), "detectron2", tmp_path / "out.pkl", 64, {})
    assert not list(tmp_path.iterdir())
