"""Exports of any encoder file, without params.yaml."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import cl
from cl.encoders import foreign
from cl.runtime.tensor_files import load_tensors
from tests.support.resnets import WIDTH, narrow, save_encoder
from tests.support.stages import assert_refused
from tests.support.transformers import transformer


def save_small(path: Path) -> None:
    """Save a network that timm does not know."""
    save_encoder(path, stem="small")


@pytest.mark.parametrize(
    ("format", "chosen"),
    [("torchvision", {"stem": "small"}), ("timm", {"stem": "imagenet", "width": 1}), ("timm", None)],
)
def test_an_export_records_only_what_is_recorded_or_given(format, chosen, tmp_path) -> None:
    """For a transformer, whose name in timm has a normalisation of its own, too. Licences are kept."""
    path = tmp_path / "encoder.safetensors"
    origins = {"parent": '{"licence": "gpl"}', "teacher": '{"licence": "mit"}'}
    if chosen:
        save_encoder(path, metadata={"network": "{}", **origins}, **chosen)
    else:
        save_file(transformer().state_dict(), path, origins)
    for name, options in (("unknown", {}), ("given", {"resize": 36, "crop": 32})):
        to = tmp_path / (name if format != "torchvision" else f"{name}.safetensors")
        done = cl.export(format, encoder=path, to=to, **options)
        assert ("no file records the size" in done.inputs) == (not options)
        written = to if format == "torchvision" else to / "model.safetensors"
        torch.testing.assert_close(load_tensors(written)[0], load_tensors(path)[0], rtol=0, atol=0)
        loaded, normalisation = cl.load(written), foreign.load(str(written)).normalisation
        assert (loaded.records_size, loaded.licence) == (bool(options), "gpl and mit")
        assert (normalisation is None) == (not options)
        assert not options or (loaded.transform.resize, loaded.transform.crop) == (36, 32)


def test_a_normalisation_without_a_size_is_not_lost(tmp_path) -> None:
    save_encoder(tmp_path / "encoder.safetensors", metadata={"network": "{}"}, stem="small")
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    described = {"model_args": {"stem_padding": 1}, "pretrained_cfg": {"mean": mean, "std": std}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    arguments = {"encoder": tmp_path / "encoder.safetensors", "to": tmp_path / "out.safetensors"}
    with pytest.raises(ValueError, match="give --resize and --crop"):
        cl.export("torchvision", **arguments)
    cl.export("torchvision", **arguments, resize=36, crop=32)
    assert cl.load(tmp_path / "out.safetensors").transform.mean == tuple(mean)


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
        "does not take the images of 30 px from --crop": [
            *("onnx", "--resize", "30", "--crop", "30", *foreign_file)
        ],
        "models/backbone.safetensors does not exist": ["onnx"],
        "timm does not know the": ["timm", *of],
        "with wider padding of the first convolution, which torchvision cannot express; choose onnx": [
            *("torchvision", "--encoder", str(padded))
        ],
        "--to a.pth must be a file that ends in .safetensors": ["torchvision", "--to", "a.pth", *of],
    }
    assert_refused(project, "export", mistakes)
    assert not (project / "exports").exists()
