"""Encoders from other programs' checkpoints, and ours for other programs: what goes out comes back, and nothing else does."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18, resnet34, resnet50

from cl.exchange import export, foreign
from cl.networks import backbones
from cl.networks.backbones import Config
from cl.runtime.tensor_files import load_tensors
from tests.support.readers import detectron2_network

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def torchvision_network(build=resnet18) -> nn.Module:  # type: ignore[no-untyped-def]
    """Random weights and statistics, so that no tensor can be mistaken for another."""
    torch.manual_seed(0)
    network = build()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5), nn.init.normal_(module.bias)
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 1.5)
    return network.eval()


def features(network: nn.Module, images: Tensor = IMAGES) -> Tensor:
    """What torchvision's network hands to its classifier."""
    with torch.no_grad():
        return nn.Sequential(*list(network.children())[:-1])(images).flatten(1)


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def moco(state: dict[str, Tensor]) -> dict:
    """As MoCo's main_moco.py saves: query and key encoder with a projector for a classifier, and the queue."""
    body = {name: value for name, value in state.items() if not name.startswith("fc")}
    heads = {f"fc.{i}.{part}": torch.zeros(4) for i in (0, 2) for part in ("weight", "bias")}
    other = {name: torch.zeros_like(value) for name, value in body.items()}
    tensors = below("module.encoder_q.", {**body, **heads}) | below("module.encoder_k.", {**other, **heads})
    return {
        "epoch": 200,
        "arch": "resnet18",
        "state_dict": {**tensors, "module.queue": torch.zeros(4, 8), "module.queue_ptr": torch.zeros(1)},
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.03}]},
    }


def moco_v3(state: dict[str, Tensor]) -> dict:
    other = {name: torch.zeros_like(value) for name, value in state.items()}
    tensors = below("module.base_encoder.", state) | below("module.momentum_encoder.", other)
    return {"epoch": 100, "state_dict": {**tensors, "module.predictor.0.weight": torch.zeros(4, 4)}}


def simsiam(state: dict[str, Tensor]) -> dict:
    return {
        "epoch": 100,
        "state_dict": {**below("module.encoder.", state), "module.predictor.0.weight": torch.zeros(4, 4)},
    }


def solo_learn(state: dict[str, Tensor]) -> dict:
    body = {name: value for name, value in state.items() if not name.startswith("fc")}
    other = {name: torch.zeros_like(value) for name, value in body.items()}
    tensors = below("backbone.", body) | below("momentum_backbone.", other)
    extra = {"projector.0.weight": torch.zeros(4, 4), "classifier.weight": torch.zeros(4, 4)}
    return {"state_dict": {**tensors, **extra}, "pytorch-lightning_version": "1.6"}


def lightly(state: dict[str, Tensor]) -> dict:
    """Its examples take the children of torchvision's network but the last, in a Sequential."""
    network = torchvision_network()
    network.load_state_dict(state)
    tensors = nn.Sequential(*list(network.children())[:-1]).state_dict()
    other = {name: torch.zeros_like(value) for name, value in tensors.items()}
    projector = {"projection_head.layers.0.weight": torch.zeros(4, 4)}
    return {"state_dict": below("backbone.", tensors) | below("backbone_momentum.", other) | projector}


@pytest.mark.parametrize("program", [lambda state: state, moco, moco_v3, simsiam, solo_learn, lightly])
def test_checkpoints_of_other_programs_are_read(program, tmp_path) -> None:
    theirs = torchvision_network()
    torch.save(program(theirs.state_dict()), tmp_path / "checkpoint.pth.tar")
    found = foreign.load(str(tmp_path / "checkpoint.pth.tar"))
    torch.testing.assert_close(found.network(IMAGES), features(theirs))
    assert found.config == Config(kind="resnet18", width=1, stem="imagenet", zero_init_residual=False)
    assert found.origin in foreign.ORIGINS.values()
    assert not found.network.training


def test_lightly_itself(tmp_path) -> None:
    """A backbone that its own model zoo makes, for small images."""
    from lightly.models import ResNetGenerator

    torch.manual_seed(0)
    theirs = nn.Sequential(
        *list(ResNetGenerator("resnet-18").children())[:-1], nn.AdaptiveAvgPool2d(1)
    ).eval()
    torch.save({"state_dict": below("backbone.", theirs.state_dict())}, tmp_path / "small.ckpt")
    found = foreign.load(str(tmp_path / "small.ckpt"))
    assert found.config.stem == "small"
    with torch.no_grad():
        torch.testing.assert_close(found.network(IMAGES), theirs(IMAGES).flatten(1))


def test_solo_learn_for_small_images(tmp_path) -> None:
    """Its 3x3 stem has a padding of 2, which no tensor shows."""
    theirs = torchvision_network()
    theirs.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=2, bias=False)
    theirs.maxpool = nn.Identity()
    torch.save(solo_learn(theirs.state_dict()), tmp_path / "cifar.ckpt")
    torch.testing.assert_close(foreign.load(f"{tmp_path}/cifar.ckpt").network(IMAGES), features(theirs))


def test_torchvision_weights_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    network, found = torchvision_network(resnet50), {}
    for version, file in (("", "resnet50-0676ba61.pth"), (":IMAGENET1K_V2", "resnet50-11ad3fa6.pth")):
        network.bn1.bias.data += 1
        torch.save(network.state_dict(), tmp_path / "checkpoints" / file)
        found[version] = foreign.load(f"torchvision:resnet50{version}")
        torch.testing.assert_close(found[version].network(IMAGES), features(network))
    assert len({each.sha256 for each in found.values()}) == 2
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with pytest.raises(
        ValueError, match=rf"torchvision:resnet18 cannot .*; put resnet18-f37072fd.pth into {tmp_path}/check"
    ):
        foreign.load("torchvision:resnet18")
    (tmp_path / "checkpoints/resnet50-0676ba61.pth").write_bytes(b"half")
    with pytest.raises(
        ValueError, match="checkpoints/resnet50-0676ba61.pth is no checkpoint of torch.* get it again"
    ):
        foreign.load("torchvision:resnet50")
    with pytest.raises(ValueError, match="resnet50 has the weights IMAGENET1K_V1, IMAGENET1K_V2"):
        foreign.load("torchvision:resnet50:V3")
    with pytest.raises(ValueError, match="choose torchvision:resnet18 or torchvision:resnet50"):
        foreign.load("torchvision:vit_b_16")


class Surprise:
    """What pickle would run when it is read."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch surprised",)


def two_networks() -> dict:
    state = torchvision_network().state_dict()
    return below("first.", state) | below("second.", {**state, "bn1.bias": state["bn1.bias"] + 1})


def without(name: str) -> dict:
    return {key: value for key, value in torchvision_network().state_dict().items() if key != name}


def below_numbers() -> dict:
    return nn.Sequential(*list(torchvision_network().children())[:-1]).state_dict()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"state_dict": {}, "extra": Surprise()},
            r"holds more than tensors and .* \(posix.system\).*If you trust it",
        ),
        ({"state_dict": {}, "hyper_parameters": SimpleNamespace()}, r"\(types.SimpleNamespace\)"),
        ({"a": torch.zeros(1)}, "should hold one residual network, found tensors such as a"),
        ({}, "should hold one residual network, found no tensors at all"),
        ([1, 2], "holds a list, expected tensors by name"),
        (two_networks(), "found those below 'first.', 'second.': say which with --prefix"),
        (
            resnet34().state_dict(),
            r"\[3, 4, 6, 3\] basic blocks and 64 channels .*; known are resnet18 and resnet50",
        ),
        (
            without("layer3.1.bn2.weight"),
            'is no resnet18 with imagenet stem: .*Missing key.*"layer3.1.bn2.weight"',
        ),
        ({**without(""), "layer2.0.se.weight": torch.zeros(2)}, 'Unexpected key.*"layer2.0.se.weight"'),
        ({**without(""), "attention.weight": torch.zeros(2)}, 'Unexpected key.*"attention.weight"'),
        (below_numbers() | {"attention.weight": torch.zeros(2)}, 'Unexpected key.*"attention.weight"'),
        ({**without(""), "layer1.0.conv1.weight": torch.zeros(64, 32, 3, 3)}, "size mismatch"),
    ],
)
def test_what_is_no_encoder_is_refused(content, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=message):
        foreign.load("a.pth")
    assert not Path("surprised").exists()


def test_damaged_and_missing_files_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="no file .*/a.pth: give a checkpoint"):
        foreign.load(f"{tmp_path}/a.pth")
    torch.save(torchvision_network().state_dict(), tmp_path / "a.pth")
    content = (tmp_path / "a.pth").read_bytes()
    noise = np.random.default_rng(0)
    for damaged in (
        b"",
        content[:1000],
        content[: len(content) // 2],
        b"x" * 100,
        *(noise.bytes(2000) for _ in range(300)),
    ):
        (tmp_path / "a.pth").write_bytes(damaged)
        with pytest.raises(
            ValueError, match="a.pth (is no checkpoint of torch, or a damaged one: get it again|holds a )"
        ):
            foreign.load(f"{tmp_path}/a.pth")
    with pytest.raises(ValueError, match="no file .*/a.safetensors: give a checkpoint"):
        foreign.load(f"{tmp_path}/a.safetensors")


def test_a_prefix_chooses(tmp_path) -> None:
    torch.save(two_networks(), tmp_path / "two.pth")
    first, second = (foreign.load(f"{tmp_path}/two.pth", prefix) for prefix in ("first.", "second."))
    assert second.origin == "names below 'second.'"
    assert first.sha256 != second.sha256, "or they would share checkpoints"
    with pytest.raises(ValueError, match="has no encoder below 'third.', only below 'first.', 'second.'"):
        foreign.load(f"{tmp_path}/two.pth", "third.")


KINDS = [
    ("resnet18", 1, "imagenet"),
    ("resnet18", 1, "small"),
    ("resnet50", 1, "imagenet"),
    ("resnet18", 2, "imagenet"),
]


def ours(kind: str = "resnet18", width: int = 1, stem: str = "imagenet") -> nn.Module:
    torch.manual_seed(0)
    network = backbones.build(Config(kind=kind, width=width, stem=stem, zero_init_residual=False))  # type: ignore[arg-type]
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 1.5)
    return network.eval()


@pytest.mark.parametrize(("kind", "width", "stem"), KINDS)
def test_a_safetensors_file_comes_back(kind, width, stem, tmp_path) -> None:
    network = ours(kind, width, stem)
    path = tmp_path / "new/out.safetensors"
    export.write(network, "torchvision", path, 64, {"mean": "1"})
    found = foreign.load(str(path))
    assert (found.config.kind, found.config.width, found.config.stem) == (kind, width, stem)
    assert all(
        torch.equal(value, network.state_dict()[name]) for name, value in found.network.state_dict().items()
    )
    assert load_tensors(path)[1] == {"mean": "1"}
    assert [file.name for file in path.parent.iterdir()] == ["out.safetensors"]


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_torchvision_and_timm_read_it(kind, tmp_path) -> None:
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


@pytest.mark.parametrize(("kind", "width", "stem"), [KINDS[0], KINDS[1]])
def test_onnx_runs_it(kind, width, stem, tmp_path) -> None:
    import onnxruntime

    network = ours(kind, width, stem)
    export.write(network, "onnx", tmp_path / "out.onnx", 64, {})
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    for images in (IMAGES, torch.randn(5, 3, 64, 64)):
        (found,) = session.run(["features"], {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), network(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_detectron2_reads_it(kind, tmp_path) -> None:
    pytest.importorskip("detectron2", reason="detectron2 has to be compiled; see README.md")
    network = ours(kind)
    export.write(network, "detectron2", tmp_path / "out.pkl", 64, {})
    with torch.no_grad():
        torch.testing.assert_close(
            detectron2_network(tmp_path / "out.pkl", kind)(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-5
        )


def test_detectron2_has_no_other_stem(tmp_path) -> None:
    for kind, width, stem in (KINDS[1], KINDS[3]):
        with pytest.raises(ValueError, match="detectron2's ResNet has a 7x7 stem and 64 channels"):
            export.write(ours(kind, width, stem), "detectron2", tmp_path / "out.pkl", 64, {})
    assert not list(tmp_path.iterdir())
