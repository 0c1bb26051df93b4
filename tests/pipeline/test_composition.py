"""Composed parameters: mistakes are answered with the choices; the overrides give the command."""

import shlex

import pytest
from click.testing import CliRunner

from cl import config
from pipeline.compose import main
from pipeline.support import composition
from pipeline.support.composition import command_for
from tests.support.project import ROOT, compose

MISTAKES = {
    "los=dclw": "los is not a parameter; did you mean loss? Choices: dataset, views, ",
    "+los=dclw": "unknown key los; did you mean loss? Choices: seed, recipe, ",
    "optim.epoch=3": "optim.epoch is not a parameter; did you mean epochs? Choices: kind, ",
    "+optim.epoch=3": "optim: unknown key epoch; did you mean epochs? Choices: kind, ",
    "optim.epochs.warmup=3": "optim.epochs.warmup is not a parameter; optim.epochs is 15",
    "evaluations.knnn.k=3": "evaluations.knnn is not a parameter; did you mean knn? Choices: knn, linear, ",
    "optim=larss optim.epoch=3": "optim=larss does not exist; did you mean lars? Choices: adamw, larc, ",
    "loss=dclx": "loss=dclx does not exist; did you mean dcl? Choices: barlow_twins, cosine, dcl, dclw, ",
    "evaluation=[knn,lin]": "evaluation=lin does not exist; did you mean linear? Choices: byol_lin, ",
    "recipe=dcl/table9": "dcl/table1_imagenet100, ",
    "loss": "cannot read 'loss': expected group=choice or key=value",
    "evaluation=[knn": "cannot read 'evaluation=[knn': expected group=choice or key=value",
    "loss=infonce,dcl": "loss=infonce,dcl has several values; `dvc exp run --queue -S` runs each of them",
    "~loss": "loss is missing",
    "optim.epochs=0": "optim.epochs=0: input should be greater than 0",
    "method=byol loss=dclw": "method=byol gives pairs without negatives, but loss=dclw needs contrasts with",
    "init=nothing": "nothing is called 'nothing'",
}


@pytest.mark.parametrize(
    "name",
    ["2024", "1e5", "true", "été 2024", "照片", "photos (1)", "it's", "a&b[1]=x", "~/a", "{a}", "a\\"],
)
def test_a_name_is_taken_as_typed(name, tmp_path) -> None:
    """And the command that repeats the run gives it again."""
    overrides = ["dataset=unlabelled", f"dataset.name={name}", "transfer=[]"]
    params = config.check(composition.compose(overrides))
    assert params.dataset.name == name
    command = shlex.split(command_for(params))[4::2]
    assert composition.compose(command)["dataset"]["name"] == name


@pytest.mark.parametrize("overrides", MISTAKES)
def test_a_mistake_is_answered_in_one_line(overrides, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, overrides.split())
    assert answer.exit_code == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("Error: ")
    assert MISTAKES[overrides] in line
    assert not list(tmp_path.iterdir())


def test_a_subfolder_is_refused(monkeypatch) -> None:
    monkeypatch.chdir(ROOT / "docs")
    answer = CliRunner().invoke(main, ["loss=dclw"])
    expected = f"Error: this is a subfolder of the project: run `cd {ROOT}` first\n"
    assert (answer.exit_code, answer.stderr) == (1, expected)
    assert not (ROOT / "docs/params.yaml").exists()


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["method=moco_v2", "method.ema.momentum=0.98"],
        ["recipe=dcl/table3_cifar10", "loss=dclw", "++seed=3"],
        ["evaluation=[knn]", "~analyses.npc", "evaluations.knn.grid_k=[1,5]"],
        ["dataset=unlabelled", "dataset.name='my Käfer'"],
    ],
)
def test_the_command_repeats_the_overrides(overrides, tmp_path) -> None:
    command = command_for(config.check(compose(tmp_path, *overrides)))
    expected = [word for override in overrides for word in ("-S", override)]
    assert shlex.split(command) == ["dvc", "exp", "run", *expected]


def test_weights_to_start_from_need_not_exist_any_more(tmp_path) -> None:
    values = compose(tmp_path, "seed=1")
    values |= {"init": {"name": "a/gone.pth:x.", "hash": "sha256:ab"}}
    values["overrides"] += ["start_from=null", "init=a/gone.pth:x."]
    expected = "dvc exp run -S seed=1 -S start_from=null -S init=a/gone.pth:x."
    assert command_for(config.check(values)) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"init": {"name": "a.pth", "hash": "sha256:ab"}},
        {"overrides": ["seed=1", "init=a.pth"]},
        {"overrides": ["loss=gone"]},
        {"overrides": ["loss"]},
    ],
)
def test_parameters_that_were_edited_by_hand_have_no_command(change, tmp_path) -> None:
    assert command_for(config.check({**compose(tmp_path, "seed=1"), **change})) is None


def test_parameters_of_an_earlier_version_are_refused(tmp_path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text((ROOT / "params.yaml").read_text().replace("overrides: []", ""))
    with pytest.raises(ValueError, match=r"params.yaml .*overrides.*python -m pipeline.compose"):
        config.load(path)
