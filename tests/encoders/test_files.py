"""Files of weights as people have them: nested, wrapped, renamed, damaged, or not weights at all."""

import io
import json
import pickle
import tarfile
import warnings
import zipfile
from argparse import Namespace
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import cl
from cl.encoders import foreign
from cl.encoders.encoder import remarks
from cl.networks import backbones
from cl.runtime.tensor_files import save_tensors
from pipeline.composition import weight_hashes
from tests.support.backbones import residual
from tests.support.resnets import IMAGES, NARROW, TRANSFORM, WIDTH, features, narrow, torchvision_network
from tests.support.transformers import below, other

NETWORK = torchvision_network()
STATE = NETWORK.state_dict()
LARGER = narrow("resnet34").state_dict()
BODY = {name: tensor for name, tensor in STATE.items() if not name.startswith("fc.")}
NUMBERS = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7, "fc": 9}


def within(wrapper: str) -> dict[str, Tensor]:
    return {name.replace("layer2.", f"layer2.{wrapper}."): tensor for name, tensor in STATE.items()}


@pytest.mark.parametrize(
    ("name", "other_name"),
    [("teacher.", "student."), ("target_encoder.", "source_encoder."), ("semantic.", "cinema.")],
)
def test_networks_that_are_no_moving_averages_must_be_chosen(name, other_name, tmp_path) -> None:
    """As in distillation from a network of the same size, and in adaptation from one domain to another."""
    state = narrow().state_dict()
    torch.save(below(other_name, state) | below(name, STATE), tmp_path / "a.pth")
    with pytest.raises(ValueError, match=f"found those below .*'{name}'.*; choose one with --prefix"):
        foreign.load(f"{tmp_path}/a.pth")
    assert foreign.load(f"{tmp_path}/a.pth", name).choice == "", "the user chose"
    torch.save({"model": STATE, "model_ema": dict(STATE), "optimizer": {"state": STATE}}, tmp_path / "b.pth")
    assert foreign.load(f"{tmp_path}/b.pth").choice == "the network in 'model', not 'model_ema'"
    torch.save(below("model_ema.module.", STATE) | below("model.", STATE), tmp_path / "average.pth")
    found = cl.load(tmp_path / "average.pth")
    assert next(remarks(found, "x")).startswith("x: the network below 'model.', not 'model_ema.module.'")


def numbered(state: dict[str, Tensor], numbers: dict[str, int] = NUMBERS) -> dict[str, Tensor]:
    """As nn.Sequential names children."""
    children = ((name.partition("."), tensor) for name, tensor in state.items())
    return {f"{numbers[child]}.{rest}": tensor for (child, _, rest), tensor in children}


def head(name: str) -> dict[str, Tensor]:
    return {f"{name}.0.weight": torch.ones(8, WIDTH), f"{name}.0.bias": torch.ones(8)}


@pytest.mark.parametrize(
    "content",
    [
        {"net": STATE, "acc": 95.0},
        {"net": STATE, "best": [np.float32(3), np.float64(3), np.float16(3), np.int64(3), np.bool_(True)]},
        {"epoch": 3, "module": STATE},
        {"state_dict": STATE, "args": Namespace(root=Path("/data"), to=PureWindowsPath("c:/a"))},
        {"state_dict": below("architecture.backbone.", BODY) | below("teacher.backbone.", LARGER)},
        {"state_dict": below("student.", other(STATE)) | below("teacher.", STATE)},
        {"model_ema": STATE},
        {"model": {"state_dict": STATE}, "queue": torch.ones(3)},
        {"model": {"depth": 18}, "backbone": STATE},
        {"encoder": below("module.", BODY), "target_encoder": below("module.", other(BODY)), "opt": {}},
        {"encoder": STATE, "best": {"encoder": STATE}},
        {"weights": STATE, "optimizer": {"exp_avg": other(STATE)}},
        {
            "classy_state_dict": {
                "base_model": {"model": {"trunk": below("_feature_blocks.", BODY), "heads": head("0.clf")}}
            }
        },
        within("_fsdp_wrapped_module"),
        within("_checkpoint_wrapped_module._orig_mod"),
        below("_orig_mod.module._fsdp_wrapped_module.", STATE),
        STATE | dict.fromkeys(("total_ops", "layer1.total_params", "layer2.0.total_ops"), torch.ones(1)),
        below("module.", BODY | head("projection_head") | {"prototypes.weight": torch.ones(30, 8)}),
        below("encoder.", BODY | head("projection") | head("last_linear2")),
        below("encoder_q.net.", numbered(STATE)) | below("encoder_k.net.", numbered(other(STATE))),
        below(
            "f.", numbered(BODY | {"fc.0.weight": torch.ones(8, WIDTH), "fc.1.running_var": torch.ones(8)})
        ),
        {name.replace("downsample", "shortcut"): tensor for name, tensor in STATE.items()},
    ],
)
def test_encoders_at_any_depth_and_with_what_programs_add_to_names_are_read(content, tmp_path) -> None:
    torch.save(content, tmp_path / "a.pth")
    torch.testing.assert_close(foreign.load(f"{tmp_path}/a.pth").network(IMAGES), features(NETWORK))


def test_a_prefix_may_have_the_wrappers_of_the_file(tmp_path) -> None:
    torch.save(below("_orig_mod.a.", STATE) | below("_orig_mod.b.", STATE), tmp_path / "a.pth")
    assert foreign.load(f"{tmp_path}/a.pth", prefix="_orig_mod.a.").origin == "names below 'a.'"
    torch.save(STATE | below("_orig_mod.", other(STATE)), tmp_path / "a.pth")
    with pytest.raises(ValueError, match="found those below '', '_orig_mod.'; choose one"):
        foreign.load(f"{tmp_path}/a.pth")


SMALL = BODY | {"conv1.weight": torch.randn(WIDTH // 8, 3, 3, 3)}
CLASSIFIER = {"classifier.weight": torch.ones(10, WIDTH)}
SOLO = {"projector.0.weight": torch.ones(8, WIDTH)} | CLASSIFIER
SHORTCUTS = {name.replace("downsample", "shortcut"): tensor for name, tensor in SMALL.items()}
WITHOUT_POOLING = {"conv1": 0, "bn1": 1, "layer1": 3, "layer2": 4, "layer3": 5, "layer4": 6}


@pytest.mark.parametrize(
    ("tensors", "prefix", "padding"),
    [
        (below("backbone.", SMALL) | SOLO, None, 2),
        (below("encoder.", SMALL) | SOLO, None, 2),
        (below("momentum_encoder.", SMALL) | below("encoder.", SMALL) | SOLO, "momentum_encoder.", 2),
        (below("module.", SHORTCUTS) | SOLO, None, 1),
        (below("f.", numbered(SMALL, WITHOUT_POOLING)), None, 1),
        (below("f.", numbered(SMALL)), None, None),
        (SMALL, None, None),
        (below("backbone.", SMALL), None, None),
        (below("backbone.", SMALL) | CLASSIFIER, None, None),
    ],
)
def test_the_padding_of_a_small_stem_is_the_programs_or_asked_for(tensors, prefix, padding, tmp_path) -> None:
    """Whatever the prefix; `init`, whose network pads as ours, need not know it."""
    torch.save({"state_dict": tensors, "pytorch-lightning_version": "2.1"}, tmp_path / "a.ckpt")
    if padding is None:
        with pytest.raises(ValueError, match=r'pads .* by 1 pixel.*by 2.*{"stem_padding": 1}.*config.json'):
            foreign.load(f"{tmp_path}/a.ckpt")
        assert "perhaps" in foreign.load(f"{tmp_path}/a.ckpt", exact=False).deviation
    else:
        assert foreign.load(f"{tmp_path}/a.ckpt", prefix).network.conv1.padding == (padding, padding)
    for given in (1, 2):
        (tmp_path / "config.json").write_text(json.dumps({"model_args": {"stem_padding": given}}))
        assert foreign.load(f"{tmp_path}/a.ckpt", prefix).network.conv1.padding == (given, given)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("layer1.0.conv1.weight", float("nan"), "nan in layer1.0.conv1.weight, expected finite numbers"),
        ("layer4.1.bn2.running_mean", float("-inf"), "-inf in layer4.1.bn2.running_mean"),
        ("bn1.bias", 1e300, "inf in bn1.bias"),  # float64, too large for float32
        ("layer2.0.bn1.running_var", -0.5, "-0.5 in layer2.0.bn1.running_var, .* variances of at least 0"),
    ],
)
def test_values_that_no_encoder_can_have_are_refused_by_name(name, value, expected, tmp_path) -> None:
    wrong = STATE[name].double()
    wrong.view(-1)[-1] = value
    torch.save({**STATE, name: wrong, "fc.weight": torch.full((3, WIDTH), float("nan"))}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=f"a.pth has {expected}.*; choose an earlier checkpoint"):
        foreign.load(f"{tmp_path}/a.pth")


def test_a_backbone_of_our_own_is_checked_too(tmp_path) -> None:
    save_tensors({**BODY, "bn1.weight": BODY["bn1.weight"] / 0}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="a.safetensors has inf in bn1.weight"):
        backbones.load(residual(stem="imagenet", width=NARROW), tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "convert", [lambda x: x.char(), lambda x: x.to_sparse(), lambda x: x.to("meta"), lambda x: x.bool()]
)
def test_weights_that_are_no_plain_numbers_are_refused(convert, tmp_path) -> None:
    torch.save({**STATE, "conv1.weight": convert(STATE["conv1.weight"])}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="a.pth has .* in conv1.weight, expected floating-point"):
        foreign.load(f"{tmp_path}/a.pth")


def archive(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as zipped:
            zipped.writestr("weights.pth", b"")
    else:
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("model.pth"))
    return file.getvalue()


def script() -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated, but its files are around
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), file)
    return file.getvalue()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer.*git lfs pull"),
        (b"\n<!DOCTYPE html><html>\xe9</html>", "a web page, not weights"),
        (b'<?xml version="1.0"?><Error/>', "a web page, not weights"),
        (b'{"weight_map": {}}', r"a text file \(.*weight_map.*\), not weights"),
        (b"Entry not found", "a text file .*Entry not found"),
        (b"\x1f\x8b\x08\x00" + bytes(20), "an archive, not weights; unpack it"),
        (archive("tar"), "an archive, not weights; unpack it"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "a Keras"),
        (b"\x08\n\x12\x07pytorch" + bytes(20), "an ONNX program, not weights"),
        (pickle.dumps({"model": 1}), "a pickle of another program, such as detectron2"),
        (b"", "empty; download it again"),
        (archive("zip"), r"an archive \(with weights.pth\), not weights"),
        (script(), "a TorchScript program, .*torch.jit.load"),
    ],
)
def test_files_taken_for_weights_are_named_for_what_they_are(content, expected, suffix, tmp_path) -> None:
    (tmp_path / f"a{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=f"a{suffix} is {expected}") as error:
        foreign.load(f"{tmp_path}/a{suffix}")
    assert "\n" not in str(error.value)


def test_the_content_of_a_file_counts_and_not_its_suffix(tmp_path) -> None:
    save_file(STATE, tmp_path / "pytorch_model.bin")
    torch.save(STATE, tmp_path / "model.safetensors")
    for name in ("pytorch_model.bin", "model.safetensors"):
        torch.testing.assert_close(foreign.load(f"{tmp_path}/{name}").network(IMAGES), features(NETWORK))


def test_folders_are_named_with_the_file_to_give(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="^. is a folder; none of its files ends in .safe"):
        foreign.load(".")
    for name in ("README.md", "optimizer.bin", "pytorch_model.bin"):
        Path(name).touch()
    with pytest.raises(ValueError, match="is a folder; give the file in it: optimizer.bin"):
        foreign.load(".")
    with pytest.raises(ValueError, match=f"init={tmp_path} is a folder; give the .* {tmp_path}/optimizer"):
        weight_hashes.of_init(str(tmp_path))
    Path("model-00001-of-00002.safetensors").touch()
    with pytest.raises(ValueError, match="has its weights in parts; save one file"):
        foreign.load(".")
    Path("__0_0.distcp").touch()
    with pytest.raises(ValueError, match="distributed checkpoint; merge it .*dcp_to_torch"):
        foreign.load(".")
    save_file(STATE, "model.safetensors")
    torch.testing.assert_close(foreign.load(".").network(IMAGES), features(NETWORK))


UNBUILDABLE = json.dumps(
    {"kind": "timm", "name": "test_vit", "size": 1, "pool": None, "drop_path": 0, "checkpointing": False}
)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"cl": "[1]"}, r"metadata cl='\[1\]', expected a JSON object"),
        ({"cl": "{"}, "metadata cl='{'"),
        ({"cl": '{"parameters": 5}'}, "metadata parameters='5'"),
        ({"parent": "[" * 100_000}, r"metadata parent='\[\["),
        ({"network": '{"kind": "vit", "size": "big"}'}, "records a network that this version does not know"),
        ({"network": UNBUILDABLE}, "names a test_vit, for 1 px, which cannot be built .Input height"),
        ({"network": '{"kind": ["vit"]}', "transform": "{}"}, "records .* resize: Field required"),
        ({"transform": "nothing"}, "records a transform that this version does not know: "),
        ({"transform": TRANSFORM.model_dump_json().replace("0.3", "0")}, "records a transform .*std.1: "),
        ({"heads": "many", "pool": "all", "stem_padding": "x", "transform": "[]"}, "records a transform"),
    ],
)
def test_metadata_that_we_did_not_write_are_refused_in_a_sentence(
    metadata: dict[str, Any], expected, tmp_path
) -> None:
    save_file(SMALL, tmp_path / "a.safetensors", metadata)
    with pytest.raises(ValueError, match=f"a.safetensors (has )?{expected}") as error:
        cl.load(tmp_path / "a.safetensors")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ({"architecture": "resnet18", "pretrained_cfg": {"std": [0, 1, 1]}}, "wrongly: std.0: .* found '0'"),
        ({"model_args": {"global_pool": "max"}}, "global_pool='max'"),
        ({"model_args": {"stem_padding": 3}}, "stem_padding=3, expected 1 or 2"),
        ({"model_args": {"stem_padding": [1]}}, r"stem_padding=\[1\], expected 1 or 2"),
        ({"architecture": "test_vit", "model_args": {"img_size": "big"}}, "img_size='big', expected pixels"),
        ({"architecture": "test_vit", "model_args": {"img_size": [{}]}}, "img_size=.*, expected pixels"),
        ({"model_type": "dinov2"}, "holds a dinov2 of .* transformers.*timm:<name>"),
    ],
)
def test_descriptions_that_do_not_help_are_answered_in_a_sentence(description, expected, tmp_path) -> None:
    is_resnet = description.get("architecture") == "resnet18"
    tensors = STATE if is_resnet else {"embeddings.cls_token": torch.ones(1, 1, 8)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match=expected) as error:
        cl.load(f"{tmp_path}/model.safetensors")
    assert "\n" not in str(error.value)


def test_a_changed_description_beside_a_file_changes_its_hash(tmp_path) -> None:
    hashes = set()
    for file, content in (("a.safetensors", "x"), ("config.json", "{}"), ("config.json", "{ }")):
        (tmp_path / file).write_text(content)
        hashes.add(weight_hashes.sha256(tmp_path / "a.safetensors", "a.safetensors"))
    assert len(hashes) == 3
