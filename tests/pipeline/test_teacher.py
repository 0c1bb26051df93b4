"""The teacher of distillation: fetched once, encoding the images once, named beside the student."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import cl
from cl import config
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import extract
from cl.images.bands import Bands
from cl.networks.teacher import SeeingTeacher
from cl.runtime.machine import Machine
from cl.runtime.tensor_files import load_tensors, save_tensors
from pipeline.baseline import of_teacher
from pipeline.composition.compose import command_for, compose, write
from pipeline.support import locations, teacher
from tests.support.distilling import SETTINGS, saved
from tests.support.resnets import TRANSFORM, save_encoder
from tests.support.stages import Stage, answers
from tests.support.transformers import transformer


@pytest.fixture(scope="module")
def distilled(project_with_shards, tmp_path_factory) -> Path:
    """A project after `weights` and `pretrain` with a teacher."""
    file = saved(tmp_path_factory.mktemp("teacher") / "large.safetensors")
    write(project_with_shards / "params.yaml", [*SETTINGS, f"teacher={file}"])
    scratch = {"CL_SCRATCH": str(project_with_shards / "scratch")}
    for answer in answers(project_with_shards, [Stage((name,), scratch) for name in ("weights", "pretrain")]):
        assert answer.code == 0, answer.stderr
    return project_with_shards


def test_the_teacher_s_features_are_computed_once_and_completed_after_an_interruption(
    distilled, monkeypatch, here: Machine, quiet: Progress
) -> None:
    monkeypatch.chdir(distilled)
    monkeypatch.setenv("CL_SCRATCH", "scratch")
    found = teacher.load(config.load(Path("params.yaml")))
    assert found
    bank = Reader(locations.SHARDS, "train")
    encoder = cl.load(str(locations.TEACHER))
    expected = F.normalize(extract(encoder.network, EvalSet(bank, encoder.transform), here), dim=1)
    (whole,) = Path("scratch/teachers").rglob("*.safetensors")
    torch.testing.assert_close(load_tensors(whole)[0]["features"], expected)
    before = whole.stat().st_mtime_ns
    assert torch.equal(teacher.stored(found, here, bank, quiet), load_tensors(whole)[0]["features"])
    assert whole.stat().st_mtime_ns == before
    monkeypatch.setenv("CL_SCRATCH", "again")
    monkeypatch.setattr(teacher, "PART", 50)
    once = teacher.stored(found, here, bank, quiet)
    first, second, third = sorted(Path("again/teachers").rglob("*.safetensors"), key=lambda p: int(p.stem))
    second.unlink()
    kept = [path.stat().st_mtime_ns for path in (first, third)]
    assert torch.equal(teacher.stored(found, here, bank, quiet), once)
    assert [path.stat().st_mtime_ns for path in (first, third)] == kept
    torch.testing.assert_close(once, expected)


def test_another_network_of_the_teacher_s_file_encodes_the_images_itself(
    distilled, monkeypatch, here: Machine, quiet: Progress
) -> None:
    """A prefix chooses it, and the hash is the whole file's."""
    monkeypatch.chdir(distilled)
    monkeypatch.setenv("CL_SCRATCH", "scratch")
    params, bank = config.load(Path("params.yaml")), Reader(locations.SHARDS, "train")
    monkeypatch.setattr(locations, "TEACHER", Path("models/other.safetensors"))
    tensors, metadata = load_tensors(distilled / "models/teacher.safetensors")
    others = {name: -x if name.endswith("weight") and x.ndim == 4 else x for name, x in tensors.items()}
    save_tensors(others, locations.TEACHER, metadata)
    found = teacher.load(params)
    assert found
    expected = found.features(EvalSet(bank, found.transform), here, quiet.count)
    torch.testing.assert_close(teacher.stored(found, here, bank, quiet), expected)
    another = params.teacher.model_copy(update={"name": f"{params.teacher.name}:student."})
    with pytest.raises(ValueError, match="other.safetensors is not .*:student.: run `dvc repro weights`"):
        teacher.load(params.model_copy(update={"teacher": another}))


def test_student_and_results_name_the_teacher(distilled, tmp_path) -> None:
    params = config.load(distilled / "params.yaml")
    notes = json.loads((distilled / "results/pretrain.provenance.json").read_text())["distillation"]
    expected = {"name": params.teacher.name, "hash": params.teacher.hash, "licence": "mit"}
    assert expected.items() <= notes["teacher"].items()
    assert notes["teacher"]["parameters"] == notes["student"]["parameters"] > 0
    assert notes["teacher"]["macs"] == notes["student"]["macs"] > 0
    cl.export("timm", encoder=distilled / "models/backbone.safetensors", to=tmp_path / "student")
    metadata = load_tensors(tmp_path / "student/model.safetensors")[1]
    assert json.loads(metadata["teacher"]) == expected
    recorded = json.loads(load_tensors(distilled / "models/method.safetensors")[1]["parameters"])
    assert recorded["teacher"]["hash"] == params.teacher.hash  # so start_from refuses another teacher
    command = shlex.split(command_for(params))
    assert command == ["dvc", "exp", "run", *(word for each in params.overrides for word in ("-S", each))]


def test_the_teacher_is_used_in_its_own_size_as_a_baseline_and_in_steps(
    distilled, monkeypatch, here: Machine, quiet: Progress
) -> None:
    monkeypatch.chdir(distilled)
    params = config.load(Path("params.yaml"))
    same = params.method.model_copy(update={"teacher_views": "same"})
    bank = Reader(locations.SHARDS, "train")
    seeing = teacher.keys(params.model_copy(update={"method": same}), here, bank, quiet)
    assert isinstance(seeing, SeeingTeacher)
    assert seeing.size == TRANSFORM.crop
    assert seeing.embed(torch.zeros(2, 3, 40, 40), torch.arange(2)).shape == (2, params.method.projector.out)
    network, params = of_teacher(params)
    assert (params.dataset.resize, params.dataset.crop) == (TRANSFORM.resize, TRANSFORM.crop)
    assert params.dataset.mean == TRANSFORM.mean
    assert not network.training


def test_the_cost_of_a_transformer_includes_its_attention(here: Machine) -> None:
    tokens, width = 1 + 16, 128  # in patches of 8 px
    block = 12 * tokens * width**2 + 2 * tokens**2 * width
    assert teacher.cost(transformer(), 32, here)["macs"] == 16 * width * 3 * 8**2 + 2 * block


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (None, 32),
        ({"img_size": 240, "patch_size": 30}, 240),
        ({"img_size": 256}, 224),
        ({}, 32),
        ({"img_size": 160}, 224),
    ],
)
def test_a_teacher_without_a_recorded_size_sees_images_that_it_was_built_for(
    options, size, project, tmp_path
) -> None:
    """224 px, unless it was built for small images (`None`: a small stem) or takes no other."""
    file, folder = tmp_path / "teacher.safetensors", tmp_path / "project"
    if options is None:
        save_encoder(file, metadata={"network": "{}"}, stem="small")
    else:
        save_file(transformer(**options).state_dict(), file, {"teacher": "a name by another program"})
    shutil.copytree(project, folder)
    write(folder / "params.yaml", [*SETTINGS, f"teacher={file}"])
    (answer,) = answers(folder, [Stage(("weights",))])
    assert f"at {size} px" in answer.stderr, answer.stderr
    assert cl.load(folder / locations.TEACHER).transform.crop == size


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["method=distill", "teacher=null"], "method.kind=distill needs a teacher"),
        (["teacher=torchvision:resnet18"], "needs method=distill, found simclr"),
        (["baseline=[teacher]"], "baseline=teacher needs method=distill"),
        (["method=distill", "teacher={good}", "init={good}"], "are the same weights"),
        (["method=distill", "teacher={nan}"], "nan.safetensors has nan in"),
        (["method=distill", "teacher={text}"], "text.safetensors "),
        (["method=distill", "teacher=nothing"], "teacher must be .*nothing is called"),
        (["method=distill", "teacher={bands}"], "takes images of 3 bands, expected RGB"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(overrides, expected, tmp_path) -> None:
    files = {
        "good": saved(tmp_path / "good.safetensors"),
        "nan": saved(tmp_path / "nan.safetensors", float("nan")),
        "text": tmp_path / "text.safetensors",
        "bands": tmp_path / "bands.safetensors",
    }
    tensors, metadata = load_tensors(files["good"])
    many: dict[str, Any] = {"mean": (1,) * 3, "deviation": (1,) * 3, "levels": ((0, 2),) * 3}
    bands = Bands(names=("red", "green", "blue"), dtype="uint16", **many)
    transform = TRANSFORM.model_copy(update={"bands": bands}).model_dump_json()
    save_tensors(tensors, files["bands"], metadata | {"transform": transform})
    files["text"].write_text("weights")
    with pytest.raises(ValueError, match=expected):
        compose([override.format(**files) for override in overrides])
