"""Exports of any encoder file, without params.yaml."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import cl
from cl.encoders import foreign
from cl.networks import backbones
from cl.networks.backbones.resnet import Streams
from cl.runtime.tensor_files import save_tensors
from tests.support.backbones import residual
from tests.support.resnets import NARROW, TRANSFORM, WIDTH, narrow, save_encoder
from tests.support.stages import assert_refused
from tests.support.transformers import transformer

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def save_streams(path) -> None:  # type: ignore[no-untyped-def]
    """Two networks, with metadata as the pipeline writes them."""
    streams = Streams(space="lab", mean=TRANSFORM.mean, std=TRANSFORM.std)
    config = residual(streams=streams, width=NARROW)
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
    assert (done.path, done.width) == (folder, WIDTH if save is save_small else 2 * WIDTH)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: cl\nlicense: cc-by-4.0\n")
    for text in ("# birds\n", 'cl.load("birds/model.safetensors")', "resized to 20 px", "\n| kNN | 71.3 |"):
        assert text in card
    ours, theirs = (
        cl.load(path) for path in (tmp_path / "encoder.safetensors", folder / "model.safetensors")
    )
    torch.testing.assert_close(theirs(IMAGES), ours(IMAGES))
    assert theirs.transform == ours.transform


@pytest.mark.parametrize("format", ["torchvision", "hub", "timm"])
def test_an_export_records_only_what_is_recorded_or_given(format, tmp_path) -> None:
    path = tmp_path / "encoder.safetensors"
    chosen = {"stem": "imagenet", "width": 1} if format == "timm" else {"stem": "small"}
    save_encoder(path, metadata={"network": "{}"}, **chosen)
    for name, options in (("unknown", {}), ("given", {"resize": 36, "crop": 32})):
        to = tmp_path / (name if format != "torchvision" else f"{name}.safetensors")
        done = cl.export(format, encoder=path, to=to, **options)
        assert ("no file records the size" in done.inputs) == (not options)
        written = to if format == "torchvision" else to / "model.safetensors"
        loaded, normalisation = cl.load(written), foreign.load(str(written)).normalisation
        assert loaded.records_size == bool(options)
        assert (normalisation is None) == (not options)
        assert not options or (loaded.transform.resize, loaded.transform.crop) == (36, 32)


@pytest.mark.parametrize("format", ["torchvision", "hub"])
def test_a_normalisation_without_a_size_is_not_lost(format, tmp_path) -> None:
    save_encoder(tmp_path / "encoder.safetensors", metadata={"network": "{}"}, stem="small")
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    described = {"model_args": {"stem_padding": 1}, "pretrained_cfg": {"mean": mean, "std": std}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    to = tmp_path / ("hub" if format == "hub" else "out.safetensors")
    arguments = {"encoder": tmp_path / "encoder.safetensors", "to": to}
    with pytest.raises(ValueError, match="give --resize and --crop"):
        cl.export(format, **arguments)
    cl.export(format, **arguments, resize=36, crop=32)
    assert cl.load(to / "model.safetensors" if format == "hub" else to).transform.mean == tuple(mean)


@pytest.mark.parametrize(
    ("license", "metadata", "expected"),
    [
        (None, {"license": "apache-2.0"}, "apache-2.0"),
        (None, {"parent": '{"licence": "cc-by-nc-4.0"}'}, "cc-by-nc-4.0"),
        ("mit", {"license": "apache-2.0"}, "mit"),
        (None, {"license": "ask: the authors"}, "other"),
        (None, {}, "unknown"),
    ],
)
def test_a_card_has_the_licence_that_is_given_or_recorded(
    license, metadata, expected, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    encoder = tmp_path / "encoder.safetensors"
    save_encoder(encoder, metadata=metadata)
    cl.export("hub", encoder=encoder, to="~/hub", license=license, resize=36, crop=32)
    assert f"\nlicense: {expected}\n" in (tmp_path / "hub/README.md").read_text()


def test_wrong_arguments_are_answered_in_one_sentence(project, tmp_path) -> None:
    save_small(tmp_path / "encoder.safetensors")
    of = ("--encoder", str(tmp_path / "encoder.safetensors"))
    padded = tmp_path / "padded/encoder.safetensors"
    padded.parent.mkdir()
    network = narrow()
    network.conv1 = torch.nn.Conv2d(3, WIDTH // 8, kernel_size=3, padding=2, bias=False)
    save_file(network.state_dict(), padded)
    (padded.parent / "config.json").write_text('{"model_args": {"stem_padding": 2}}')
    torch.save(transformer().state_dict(), tmp_path / "vit.pth")
    foreign_file = ("--encoder", str(tmp_path / "vit.pth"))
    mistakes = {
        "found --resize None with --crop 16; give both or": ["hub", "--crop", "16", *of],
        "records resize=20 and crop=16; leave": ["hub", "--resize", "16", "--crop", "16", *of],
        "does not take the images of 30 px from --crop": [
            *("onnx", "--resize", "30", "--crop", "30", *foreign_file)
        ],
        "models/backbone.safetensors does not exist": ["onnx"],
        "timm does not know the": ["timm", *of],
        "with wider padding of the first convolution, which hub cannot express; choose onnx": [
            *("hub", "--encoder", str(padded))
        ],
        "--license mit is only for hub, not for timm; leave it out": ["timm", "--license", "mit", *of],
        "no file --card none.md": ["hub", "--card", "none.md", *of],
        "--to a.pth must be a file that ends in .safetensors": ["torchvision", "--to", "a.pth", *of],
    }
    assert_refused(project, "export", mistakes)
    assert not (project / "exports").exists()
