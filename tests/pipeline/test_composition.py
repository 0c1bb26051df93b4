"""Composed parameters: mistakes are answered with the choices; the overrides give the command."""

import shlex

import pytest
from click.testing import CliRunner

from cl import config
from pipeline.compose import main
from pipeline.composition import compose as composition
from pipeline.composition.compose import command_for
from tests.support.project import ROOT, compose

MISTAKES = {
    "los=dclw": "los is not a parameter; did you mean loss?",
    "+los=dclw": "unknown key los; did you mean loss?",
    "epochs=1": "epochs is not a parameter; did you mean optim.epochs?",
    "optim.lr=1": "optim.lr is not a parameter; did you mean base_lr or predictor_lr?",
    "first=1000": "did you mean dataset.first?",
    "optim.epoch=3": "optim.epoch is not a parameter; did you mean epochs?",
    "optim.epochs.warmup=3": "optim.epochs.warmup is not a parameter; optim.epochs is 15",
    "evaluations.knnn.k=3": "evaluations.knnn is not a parameter; did you mean knn? Choices: knn, linear, ",
    "+evaluations.x=3": "evaluations.x is not a parameter; choose one of knn, linear, ",
    "evaluations.knn_200.k=3": "evaluations.knn_200 is not chosen; choose evaluation=[knn,linear,",
    "baselines.supervised.optim.epochs=3": "did you mean baselines.supervised.training.optim.epochs?",
    "views.size=64": "did you mean views.random.size?",
    "loss.sigma=0.3": "loss.sigma is not a parameter of loss.kind=dcl; choose loss=dclw",
    "recipe=own/small views=byol views.random.size=8": "views.random is not a parameter; choose one of first",
    "optim=larss optim.epoch=3": "optim=larss does not exist; did you mean lars? Choices: adamw, larc, ",
    "optim.epoch=3 loss=dclx": "loss=dclx does not exist; did you mean dcl? Choices: barlow_twins, ",
    "loss=InfoNCE": "loss=InfoNCE does not exist; did you mean infonce? Choices: ",
    "method=simclr_cifar": "did you mean simclr or simclr_eqco? pipeline/conf/method has all ",
    "evaluation=[knn,lin]": "evaluation=lin does not exist; did you mean linear? pipeline/conf/evaluation",
    "analyses=[npc,views]": "analyses holds the parameters of each; choose them with analysis=[npc,views]",
    "method=foo": "method=foo does not exist; the nearest are fast_moco, moco_v3, moco_v2. pipeline/conf/",
    "dataset=/a/birds seed=3": "run `dvc exp run -S recipe=own/small -S dataset.name=/a/birds -S seed=3`",
    "dataset.name=birds seed=3": "run `dvc exp run -S recipe=own/small -S dataset.name=birds -S seed=3`, or",
    "dataset.first=9": "dataset.first is not a parameter of dataset.kind=photos; choose dataset=cifar10 or",
    "datset.name=~/birds": "key=value; did you mean dataset.name?",
    "loss": "cannot read 'loss': expected group=choice or key=value",
    "seed=3 loss=infonce,dcl": "`dvc exp run --queue -S seed=3 -S loss=infonce,dcl` queues a run for each",
    "seed=3 loss=[infonce,dcl]": "choose one; `dvc exp run --queue -S seed=3 -S loss=infonce,dcl` queues a",
    "method.kind=moco": "choose method=moco_v1, moco_v2 or moco_v3",
    "evaluation=null": "leave it out, or choose evaluation=[]",
    "~transfer": "~transfer is not possible: choose transfer=[]",
    "~loss": "loss is missing",
    "bn_group=local": "bn_group='local': input should be 'global'; bn_group='local': input should be a valid",
    "method=byol loss=dclw": "method.kind=byol gives pairs without negatives, but loss=dclw needs contrasts",
    "views.random.area=[0.2]": "views.random.area.1 is missing",
    "init=nothing": "nothing is called 'nothing'",
    "recipe=own/small dataset=folder evaluation=[knn] evaluations.linear.optim.epochs=9": (
        "evaluations.linear is not chosen; choose evaluation=[knn,linear]"
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        *("2024", "照片", "photos (1)", "it's\\", "a&b[1]=x", "a\\"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("1e5", "true", "été 2024", "~/a", "{a}", "a\\ b", "'a", 'a"')
        ),
    ],
)
def test_a_name_is_taken_as_typed(name, tmp_path) -> None:
    """And the command that repeats the run gives it again."""
    overrides = ["dataset=unlabelled", f"dataset.name={name}", "transfer=[]"]
    params = config.check(composition.compose(overrides))
    assert params.dataset.name == name
    command = command_for(params)
    assert shlex.quote(f"dataset.name={name}") in command
    assert shlex.split(command)[4::2] == params.overrides == overrides


@pytest.mark.parametrize("overrides", MISTAKES)
def test_a_mistake_is_answered_in_one_line(overrides, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, overrides.split())
    assert answer.exit_code == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("Error: ")
    assert MISTAKES[overrides] in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("recipe", "typed", "left_out"),
    [
        (
            "fast/cifar10",
            ["backbone=vit_tiny_patch4", "backbone.depth=2"],
            "backbone.cosine_stem, backbone.name, backbone.width",
        ),
        ("quoted/moco_cifar10", ["method=simclr"], "method.ema, method.queue, method.shuffle"),
        ("own/small", ["views=byol", "views.second.area=[0.5,1]"], "views.random"),
        ("own/small", ["backbone=resnet34"], None),
    ],
)
def test_a_typed_choice_has_its_own_settings_not_a_recipe_s(recipe, typed, left_out) -> None:
    said, group = list[str](), typed[0].split("=")[0]
    values = composition.compose([f"recipe={recipe}", "dataset=cifar10", *typed], said.append)
    assert values[group] == composition.compose(["dataset=cifar10", *typed])[group]
    assert said == ([f"{typed[0]}: left out settings for another choice: {left_out}"] if left_out else [])


def test_a_typed_optimizer_keeps_batch_and_epochs_of_the_recipe() -> None:
    found = composition.compose(["recipe=own/medium", "optim=adamw", "optim.betas=[0.9,0.99]"])["optim"]
    assert (found["batch_size"], found["epochs"], found["warmup_start"]) == (256, 200, 0.25)
    assert [found[key] for key in ("base_lr", "reference_batch", "betas")] == [1.5e-4, 256, [0.9, 0.99]]
    assert composition.compose(["method=fast_moco", "optim=adamw"])["optim"]["base_lr"] == 1.5e-4


@pytest.mark.parametrize("data", ["unlabelled", "table"])
@pytest.mark.parametrize(
    "choice",
    ["analysis=[]", "baseline=[]", "baseline=[random]", "evaluation=[knn]", "evaluation=[retrieval]"],
)
def test_a_recipe_s_settings_for_what_is_not_chosen_are_dropped(choice, data) -> None:
    values = composition.compose(["recipe=own/small", f"dataset={data}", choice])
    group, names = choice.rstrip("]").split("=[")
    found = values[{"analysis": "analyses"}.get(group, f"{group}s")]
    assert list(found) == (
        [] if (names, data) == ("knn", "unlabelled") else names.split(",") if names else []
    )


@pytest.mark.parametrize(
    ("data", "sizes"), [("cifar10", [32, 32]), ("cifar100", [32, 32]), ("stl10", [96, 96])]
)
def test_a_small_data_set_chooses_what_suits_it(data, sizes) -> None:
    params = config.check(composition.compose([f"dataset={data}"]))
    assert (params.backbone.stem, params.transfers, params.view_sizes) == ("small", {}, sizes)
    assert (list(params.evaluations), params.dataset.encode) == (["knn", "linear"], "raw")
    chosen = config.check(composition.compose([f"dataset={data}", "method=cmc", "analysis=[npc]"]))
    assert (chosen.backbone.streams is not None, list(chosen.analyses)) == (True, ["npc"])


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
        ["dataset=unlabelled", "dataset.name=my Käfer"],
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
