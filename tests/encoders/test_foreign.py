"""Encoders from other programs' checkpoints: known formats are read, everything else is refused."""

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50
from torchvision.models.resnet import BasicBlock, ResNet

from cl.encoders import foreign, published
from cl.runtime.tensor_files import licence
from pipeline.composition import weight_hashes
from tests.support.backbones import residual
from tests.support.resnets import (
    IMAGES,
    NARROW,
    features,
    narrow,
    put_torchvision_weights,
    torchvision_network,
)
from tests.support.transformers import below, other


def moco(state: dict[str, Tensor]) -> dict:
    """As saved by MoCo's main_moco.py: two encoders with the projector as classifier, and the queue."""
    body = {name: value for name, value in state.items() if not name.startswith("fc")}
    heads = {f"fc.{i}.{part}": torch.zeros(4) for i in (0, 2) for part in ("weight", "bias")}
    tensors = below("module.encoder_q.", body | heads) | below("module.encoder_k.", other(body) | heads)
    return {
        "epoch": 200,
        "arch": "resnet18",
        "state_dict": {**tensors, "module.queue": torch.zeros(4, 8), "module.queue_ptr": torch.zeros(1)},
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.03}]},
    }


def moco_v3(state: dict[str, Tensor]) -> dict:
    tensors = below("module.base_encoder.", state) | below("module.momentum_encoder.", other(state))
    return {"epoch": 100, "state_dict": {**tensors, "module.predictor.0.weight": torch.zeros(4, 4)}}


def simsiam(state: dict[str, Tensor]) -> dict:
    return {
        "epoch": 100,
        "state_dict": {**below("module.encoder.", state), "module.predictor.0.weight": torch.zeros(4, 4)},
    }


def solo_learn(state: dict[str, Tensor]) -> dict:
    body = {name: value for name, value in state.items() if not name.startswith("fc")}
    tensors = below("backbone.", body) | below("momentum_backbone.", other(body))
    extra = {"projector.0.weight": torch.zeros(4, 4), "classifier.weight": torch.zeros(4, 4)}
    return {"state_dict": {**tensors, **extra}, "pytorch-lightning_version": "1.6"}


def lightly(state: dict[str, Tensor]) -> dict:
    """Its examples put all children of torchvision's network except the last into a Sequential."""
    network = torchvision_network()
    network.load_state_dict(state)
    tensors = nn.Sequential(*list(network.children())[:-1]).state_dict()
    both = below("backbone.", tensors) | below("backbone_momentum.", other(tensors))
    return {"state_dict": both | {"projection_head.layers.0.weight": torch.zeros(4, 4)}}


@pytest.mark.parametrize("program", [lambda state: state, moco, moco_v3, simsiam, solo_learn, lightly])
def test_checkpoints_of_other_programs_are_read(program, tmp_path) -> None:
    theirs = torchvision_network(resnet18 if program is moco else narrow)
    torch.save(program(theirs.state_dict()), tmp_path / "checkpoint.pth.tar")
    found = foreign.load(str(tmp_path / "checkpoint.pth.tar"))
    torch.testing.assert_close(found.network(IMAGES), features(theirs))
    assert found.config == residual(stem="imagenet", width=1 if program is moco else NARROW)
    assert found.origin in foreign.ORIGINS.values()
    assert not found.network.training


@pytest.mark.parametrize("width", [1, 0.25])
def test_a_backbone_built_by_lightly_is_read(width, tmp_path) -> None:
    """For small images, by its own ResNetGenerator."""
    from lightly.models import ResNetGenerator

    torch.manual_seed(0)
    theirs = nn.Sequential(
        *list(ResNetGenerator("resnet-18", width=width).children())[:-1], nn.AdaptiveAvgPool2d(1)
    ).eval()
    torch.save({"state_dict": below("backbone.", theirs.state_dict())}, tmp_path / "small.ckpt")
    found = foreign.load(str(tmp_path / "small.ckpt"))
    assert (found.config.stem, found.config.width) == ("small", width)
    with torch.no_grad():
        torch.testing.assert_close(found.network(IMAGES), theirs(IMAGES).flatten(1))


def test_torchvision_weights_are_chosen_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    urls = [published.torchvision_url(f"torchvision:resnet50{version}") for version in ("", ":IMAGENET1K_V2")]
    assert [url.rsplit("/", 1)[1] for url in urls] == ["resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth"]
    network = torchvision_network(resnet50)
    with monkeypatch.context() as patch:
        put_torchvision_weights(network, tmp_path / "checkpoints", patch)
        found = foreign.load("torchvision:resnet50")
        torch.testing.assert_close(found.network(IMAGES), features(network))
    torch.save(network.state_dict(), tmp_path / "checkpoints/resnet50-0676ba61.pth")
    with pytest.raises(ValueError, match="not torchvision:resnet50: .* must start with 0676ba61"):
        foreign.load("torchvision:resnet50")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=rf"cannot .*; put resnet18-f37072fd.pth into {tmp_path}/check"):
        foreign.load("torchvision:resnet18")
    with pytest.raises(ValueError, match="resnet50 has the weights IMAGENET1K_V1, IMAGENET1K_V2"):
        foreign.load("torchvision:resnet50:V3")
    with pytest.raises(ValueError, match="choose one of torchvision:resnet18, "):
        foreign.load("torchvision:vit_b_16")


def put_timm_weights(network: nn.Module, name: str, cache: Path) -> Path:
    """Weights in the cache of the hub, as its own client lays them out after a download."""
    repository = cache / f"models--timm--{name}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0123456789")
    file = repository / "snapshots/0123456789/model.safetensors"
    file.parent.mkdir(parents=True)
    save_file({key: value.contiguous() for key, value in network.state_dict().items()}, file)
    return file


def test_timms_weights_are_chosen_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    network = torchvision_network(resnet50)
    file = put_timm_weights(network, "resnet50.a1_in1k", tmp_path)
    found = foreign.load("timm:resnet50.a1_in1k")
    torch.testing.assert_close(found.network(IMAGES), features(network))
    assert licence(found.metadata) == "apache-2.0"
    put_timm_weights(timm.create_model("test_convnext"), "test_convnext.r160_in1k", tmp_path)
    assert foreign.load("timm:test_convnext.r160_in1k").config.title == "test_convnext, for 160 px"
    expected = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert weight_hashes.of_init("timm:resnet50.a1_in1k")[0] == expected
    file.with_name("config.json").write_text('{"model_args": {"num_heads": 0}}')  # by `hf download`
    assert weight_hashes.of_init("timm:resnet50.a1_in1k")[0] == expected
    with pytest.raises(ValueError, match="no weights called resnet50.mine; choose .* resnet50.a1"):
        foreign.load("timm:resnet50.mine")
    with pytest.raises(ValueError, match="timm has no weights called nothing$"):
        foreign.load("timm:nothing")
    with pytest.raises(ValueError, match=r"timm:resnet18.a1_in1k cannot be .* \(.*\); .* copy its HF_HOME"):
        foreign.load("timm:resnet18.a1_in1k")


class Surprise:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch surprised",)


class Options:
    """Settings as an object, which checkpoints of other programs contain."""


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
        ({"state_dict": {}, "extra": Surprise()}, r"more than tensors .* \(posix.system\).*if you trust it"),
        ({"state_dict": {}, "hyper_parameters": SimpleNamespace()}, r"\(types.SimpleNamespace\)"),
        ({"a": torch.zeros(1)}, "one residual network or vision transformer, found tensors such as a; "),
        ({}, "holds no tensors of a network, found nothing"),
        ({"net": {"weights": [1]}, "epoch": 3}, "no tensors of a network, found net, epoch; give a file"),
        ([1, 2], "holds a list, expected named tensors"),
        (two_networks, "found those below 'first.', 'second.'; choose one with --prefix"),
        (
            lambda: ResNet(BasicBlock, [3, 3, 3, 3]).state_dict(),
            r"\[3, 3, 3, 3\] blocks \(BasicBlock\) and 64 channels .*; expected resnet10, 18, 34",
        ),
        (lambda: without("layer3.1.bn2.weight"), "not a resnet18 .*: it lacks layer3.1.bn2.weight;"),
        (lambda: {**without(""), "layer2.0.se.weight": torch.zeros(2)}, "it has layer2.0.se.weight, which"),
        (lambda: {**without(""), "attention.weight": torch.zeros(2)}, "it has attention.weight, which"),
        (lambda: below_numbers() | {"attention.weight": torch.zeros(2)}, "it has attention.weight, which"),
        (
            lambda: {**without(""), "layer1.0.conv1.weight": torch.zeros(64, 32, 3, 3)},
            r"has layer1.0.conv1.weight of shape \[64, 32, 3, 3\], expected \[8, 8, 3, 3\]",
        ),
    ],
)
def test_a_file_that_is_not_an_encoder_is_refused(content, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content() if callable(content) else content, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=message):
        foreign.load("a.pth")
    assert not Path("surprised").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrapped", [lambda x: x, lambda x: {"state_dict": x.state_dict(), "args": Options()}]
)
def test_the_advice_for_pickled_objects_works(wrapped, tmp_path, monkeypatch) -> None:
    """For a whole module, and for a checkpoint with the objects of a program."""
    monkeypatch.chdir(tmp_path)
    torch.save(wrapped(torchvision_network()), "a.pth")
    with pytest.raises(ValueError, match="if you trust it, extract its tensors") as error:
        foreign.load("a.pth")
    advice = str(error.value).partition('python -c "')[2].removesuffix('"')
    exec(advice, {})
    assert foreign.load("tensors.pth").config.name == "resnet18"


def test_damaged_and_missing_files_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="/a.pth does not exist; give a checkpoint"):
        foreign.load(f"{tmp_path}/a.pth")
    torch.save(torchvision_network().state_dict(), tmp_path / "a.pth")
    content = (tmp_path / "a.pth").read_bytes()
    noise = np.random.default_rng(0)
    parts = content[:0], content[:1000], content[: len(content) // 2], b"x" * 100
    refused = "a.pth (is not a torch checkpoint, or it is damaged; download|holds a |is empty|is a text)"
    for damaged in (*parts, *(noise.bytes(2000) for _ in range(300))):
        (tmp_path / "a.pth").write_bytes(damaged)
        with pytest.raises(ValueError, match=refused):
            foreign.load(f"{tmp_path}/a.pth")


def test_a_prefix_chooses_between_several_encoders(tmp_path) -> None:
    torch.save(two_networks(), tmp_path / "two.pth")
    first, second = (foreign.load(f"{tmp_path}/two.pth", prefix) for prefix in ("first.", "second."))
    assert second.origin == "names below 'second.'"
    assert first.sha256 != second.sha256, "equal hashes would share checkpoints"
    with pytest.raises(ValueError, match="below 'third.', only below 'first.', 'second.'"):
        foreign.load(f"{tmp_path}/two.pth", "third.")


@pytest.mark.parametrize(
    ("key", "other", "prefix"),
    [
        ("state_dict_ema", "state_dict", "state_dict."),  # timm itself loads the average
        ("model", "model_ema", "model_ema.module."),
        ("state_dict", "module", "module."),
    ],
)
def test_a_prefix_chooses_the_network_that_is_not_the_usual_one(key, other, prefix, tmp_path) -> None:
    trained = torchvision_network().state_dict()
    bias = trained["bn1.bias"] + 1
    inner = prefix.removeprefix(f"{other}.")
    content = {key: trained, other: below(inner, trained | {"bn1.bias": bias})}
    torch.save({"arch": "resnet18", **content}, tmp_path / "a.pth")
    assert not torch.equal(foreign.load(f"{tmp_path}/a.pth").network.bn1.bias, bias)
    assert torch.equal(foreign.load(f"{tmp_path}/a.pth", prefix).network.bn1.bias, bias)
    torch.save({"state_dict": below("module.", trained), "module": {"a": bias}}, tmp_path / "a.pth")
    assert not torch.equal(foreign.load(f"{tmp_path}/a.pth", "module.").network.bn1.bias, bias)
