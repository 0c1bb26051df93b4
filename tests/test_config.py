"""The shipped configuration, and what a user who makes a mistake is told."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, compose

from cl import config


def test_params_yaml_is_the_default_composition(tmp_path) -> None:
    compose(tmp_path)
    assert (tmp_path / "params.yaml").read_text() == (ROOT / "params.yaml").read_text()


def test_top_level_keys() -> None:
    expected = "seed recipe dataset views patches backbone method temperature loss optim precision deterministic bn_group"
    assert set(config.Params.model_fields) == {*expected.split(), "evaluations", "transfers", "analyses", "baselines"}


def choices() -> list[str]:
    """`-S` arguments for every file of every group."""
    conf = ROOT / "pipeline" / "conf"
    lists = {"evaluation", "transfer", "analysis", "baseline"}
    inner = {"scenes", "crop"}  # not chosen by themselves
    result = []
    for path in sorted(conf.rglob("*.yaml")):
        group, *name = path.relative_to(conf).with_suffix("").parts
        if name and group not in inner:
            choice = "/".join(name)
            result.append(f"{group}=[{choice}]" if group in lists else f"{group}={choice}")
    return result


@pytest.mark.parametrize("choice", choices())
def test_every_file_composes_and_validates(tmp_path, choice) -> None:
    if choice == "loss=cosine":
        with pytest.raises(ValueError, match="would collapse"):
            config.check(compose(tmp_path, choice))
    else:
        config.check(compose(tmp_path, choice))


@pytest.mark.parametrize("loss", ["infonce", "dcl", "dclw", "eqco_a65536"])
@pytest.mark.parametrize("method", ["simclr", "moco_v2"])
def test_method_and_loss_cross(tmp_path, method, loss) -> None:
    params = config.check(compose(tmp_path, f"method={method}", f"loss={loss}"))
    assert params.temperature == {"simclr": 0.1, "moco_v2": 0.2}[method]


def test_a_recipe_yields_to_the_command_line(tmp_path) -> None:
    params = config.check(compose(tmp_path, "recipe=dcl/table1_imagenet100", "loss=infonce", "optim.batch_size=64"))
    assert (params.recipe, params.loss.kind, params.optim.batch_size) == ("dcl/table1_imagenet100", "infonce", 64)


def test_yaml_1_2_numbers(tmp_path) -> None:
    text = (ROOT / "params.yaml").read_text().replace("weight_decay: 0.0005", "weight_decay: 1e-3")
    assert "1e-3" in text
    (tmp_path / "params.yaml").write_text(text)
    assert config.load(tmp_path / "params.yaml").optim.weight_decay == 0.001


HEAD = {"hidden": [], "out": 8, "norm": False, "norm_last": False}
MOCO = {"kind": "moco", "projector": HEAD, "queue": 64, "momentum": 0.9, "shuffle": True, "scale": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": {"kind": "dclx"}}, "loss: kind=dclx is unknown; choose one of cosine, dcl, dclw, infonce"),
        ({"loss": {"kind": "dclw", "sigma": -1, "detach_weight": True}}, "loss.sigma=-1: input should be greater than 0"),
        ({"loss": {"kind": "infonce"}}, "loss.alpha is missing"),
        ({"loss": {"kind": "dcl", "sigma": 1}}, "loss: unknown key sigma; there are kind"),
        ({"sede": 1}, "unknown key sede; there are seed, recipe, dataset"),
        ({"loss": {"kind": "cosine"}}, "loss=cosine does not look at the negatives that method=simclr gives"),
        ({"loss": {"kind": "cosine"}}, "choose loss=dcl or dclw or infonce"),
        ({"temperature": None}, "temperature=null, but method=simclr needs one"),
        ({"bn_group": 48}, "bn_group=48 does not divide optim.batch_size=128"),
        ({"precision": "fp16"}, "precision='fp16': input should be 'fp32', 'tf32' or 'bf16'"),
        (
            {"bn_group": 128, "method": MOCO},
            "method.shuffle=true shuffles between groups of batch norm, but bn_group=128 makes one",
        ),
        ({"seed": -1}, "seed=-1: input should be greater than or equal to 0"),
    ],
)
def test_mistakes_are_named(change, message) -> None:
    values = config.read(ROOT / "params.yaml") | change
    with pytest.raises(ValueError) as error:
        config.check(values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optim.nesterov", True, "nesterov=true is for kind=sgd, kind=lars would ignore it"),
        ("optim.milestones", [0.5], "schedule=cosine with milestones=[0.5]: they go with schedule=steps alone"),
        ("optim.monitor.k", 1000, "k=1000 neighbours cannot come from bank=256 images"),
        ("views.random.area", [1.0, 0.2], "[1.0, 0.2] is no range from a smaller to a larger number"),
        ("views.random.blur.kernel", 4, "kernel=4 has no middle; choose an odd number of taps"),
        ("dataset.scenes.digit", [10, 500], "digit=[10, 500] does not fit into scenes of size=128"),
        ("dataset.scenes.classes", [12], "dataset.scenes.classes.0=12: input should be less than or equal to 9"),
        ("transfers.voc_c4.detector", "mask_rcnn_c4", "detector=mask_rcnn_c4 needs masks, which kind=voc has not"),
        ("transfers.voc_c4.pooled", 7, "pooled=7 is odd, but res5 halves it; choose 14 as the papers"),
        ("transfers.voc_c4.backbone_lr", 0, "transfers.voc_c4.backbone_lr=0: input should be greater than 0"),
        (
            "transfers.coco_c4.detector",
            "faster_rcnn_fpn",
            "faster_rcnn_fpn takes pooled=7 and five anchors, one for each of P2",
        ),
    ],
)
def test_mistakes_inside_a_section_are_named(key, value, message) -> None:
    values = config.read(ROOT / "params.yaml")
    values["optim"]["kind"] = "lars"
    *path, last = key.split(".")
    section = values
    for part in path:
        section = section[part]
    section[last] = value
    with pytest.raises(ValueError) as error:
        config.check(values)
    assert message in str(error.value)


def test_broken_yaml_is_named(tmp_path) -> None:
    (tmp_path / "params.yaml").write_text("a: [1,\nb")
    with pytest.raises(ValueError, match=r"params.yaml is no YAML: .*line 2"):
        config.load(tmp_path / "params.yaml")
    with pytest.raises(ValueError, match=r"no .*nothing.yaml: run this from the top folder"):
        config.load(tmp_path / "nothing.yaml")


def test_three_views_are_refused() -> None:
    values = config.read(ROOT / "params.yaml")
    values["views"]["random"]["count"] = 3
    with pytest.raises(ValueError, match="takes two views of one size, found 3: 32 px, 32 px, 32 px"):
        config.check(values)


def test_a_baseline_names_evaluations_that_exist() -> None:
    values = config.read(ROOT / "params.yaml")
    values["baselines"]["random"]["evaluations"] = ["knm"]
    with pytest.raises(ValueError, match=r"baselines.random.evaluations names knm, but evaluations has knn, linear"):
        config.check(values)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=cwd, capture_output=True, text=True)


def test_help_comes_without_torch() -> None:
    for stage in ("prepare", "pretrain", "evaluate", "transfer", "analyze", "baseline", "report"):
        code = f"import sys; sys.argv = ['x', '--help']\ntry:\n  from pipeline.{stage} import main; main()\n"
        code += "except SystemExit: assert 'torch' not in sys.modules"
        result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert "Usage" in result.stdout


def test_entry_points_answer_mistakes_in_a_sentence(project) -> None:
    unknown = run("pipeline.evaluate", "knm", cwd=project)
    assert unknown.returncode == 1
    assert unknown.stderr == "Error: evaluations has no 'knm' in params.yaml; choose one of knn, linear, semi_1, semi_10\n"
    missing = run("pipeline.pretrain", cwd=project)
    assert missing.returncode == 1
    assert "run `dvc repro" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert not (project / "results" / "pretrain.partial").exists()
    recipe = run("pipeline.compose", "recipe=dcl/table9", cwd=project)
    assert recipe.returncode == 1
    assert recipe.stderr.startswith("Error: In 'config': Could not find 'recipe/dcl/table9'")
    assert "dcl/table1_imagenet100" in recipe.stderr
    assert "Traceback" not in recipe.stderr
    for stage in (["transfer", "voc_c4"], ["evaluate", "knn"], ["analyze", "npc"], ["baseline", "random"]):
        result = run(f"pipeline.{stage[0]}", stage[1], cwd=project)
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        assert "dvc repro" in result.stderr or "put VOCdevkit" in result.stderr
