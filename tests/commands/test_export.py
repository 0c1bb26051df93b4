"""Exports of any encoder file, without params.yaml."""

import json
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

import cl
from cl.networks import backbones
from cl.networks.backbones.resnet import Streams
from cl.runtime.tensor_files import save_tensors
from tests.support.backbones import residual
from tests.support.resnets import TRANSFORM, save_encoder
from tests.support.stages import assert_refused

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def save_streams(path) -> None:  # type: ignore[no-untyped-def]
    """Two networks, with metadata as the pipeline writes them."""
    streams = Streams(space="lab", mean=TRANSFORM.mean, std=TRANSFORM.std)
    config = residual(streams=streams)
    recorded = {"parameters": json.dumps({"backbone": config.model_dump()})}
    recorded["transform"] = TRANSFORM.model_dump_json()
    save_tensors(backbones.build(config).state_dict(), path, recorded)


def save_small(path: Path) -> None:
    """Save a network that timm does not know."""
    save_encoder(path, stem="small")


@pytest.mark.parametrize("save", [save_small, save_streams])
def test_a_folder_for_the_hub_has_a_card_and_gives_the_same_features(save, tmp_path) -> None:
    save(tmp_path / "encoder.safetensors")
    (tmp_path / "tables.md").write_text("| kNN | 71.3 |")
    folder = tmp_path / "birds"
    done = cl.export(
        "hub",
        encoder=tmp_path / "encoder.safetensors",
        to=folder,
        license="cc-by-4.0",
        card=tmp_path / "tables.md",
    )
    assert (done.path, done.width) == (folder, 512 if save is save_small else 1024)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: cl\nlicense: cc-by-4.0\n")
    for text in ("# birds\n", 'cl.load("birds/model.safetensors")', "resized to 20 px", "\n| kNN | 71.3 |"):
        assert text in card
    ours, theirs = (
        cl.load(path) for path in (tmp_path / "encoder.safetensors", folder / "model.safetensors")
    )
    torch.testing.assert_close(theirs(IMAGES), ours(IMAGES))
    assert theirs.transform == ours.transform


def test_wrong_arguments_are_answered_in_one_sentence(project, tmp_path) -> None:
    save_small(tmp_path / "encoder.safetensors")
    of = ("--encoder", str(tmp_path / "encoder.safetensors"))
    padded = tmp_path / "padded/encoder.safetensors"
    padded.parent.mkdir()
    network = torchvision.models.resnet18()
    network.conv1 = torch.nn.Conv2d(3, 64, kernel_size=3, padding=2, bias=False)
    save_file(network.state_dict(), padded)
    (padded.parent / "config.json").write_text('{"model_args": {"stem_padding": 2}}')
    mistakes = {
        "models/backbone.safetensors does not exist": ["onnx"],
        "timm does not know the": ["timm", *of],
        "with wider padding of the first convolution, which hub cannot express; choose onnx": [
            *("hub", "--encoder", str(padded))
        ],
        "--license mit is only for hub, not for timm; leave it out": ["timm", "--license", "mit", *of],
        "--license cc: by is not a license name": ["hub", "--license", "cc: by", *of],
        "no file --card none.md": ["hub", "--card", "none.md", *of],
        "--to a.pth does not end in .safetensors": ["torchvision", "--to", "a.pth", *of],
    }
    assert_refused(project, "export", mistakes)
    assert not (project / "exports").exists()
