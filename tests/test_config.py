"""The shipped configuration, and what a user who makes a mistake is told."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cl import config
from pipeline import command
from tests.support.project import ROOT, compose


def test_params_yaml_is_the_default_composition(tmp_path) -> None:
    compose(tmp_path)
    assert (tmp_path / "params.yaml").read_text() == (ROOT / "params.yaml").read_text()


def test_top_level_keys() -> None:
    expected = "seed recipe dataset views patches backbone method temperature loss optim precision deterministic bn_group"
    assert set(config.Params.model_fields) == {
        *expected.split(),
        "evaluations",
        "transfers",
        "analyses",
        "baselines",
    }


def choices() -> list[str]:
    """`-S` arguments for every file of every group."""
    conf = ROOT / "pipeline" / "conf"
    lists = {"evaluation", "transfer", "analysis", "baseline"}
    inner = {"scenes", "crop", "trainer", "storage"}  # not chosen by themselves
    result = []
    for path in sorted(conf.rglob("*.yaml")):
        group, *name = path.relative_to(conf).with_suffix("").parts
        if name and group not in inner:
            choice = "/".join(name)
            result.append(f"{group}=[{choice}]" if group in lists else f"{group}={choice}")
    return result


ALONE_REFUSED = {
    "loss=cosine": "would collapse",
    "loss=jcl": "several keys",
    "loss=jcl_imagenet": "several keys",
}
NEEDS_PREDICTOR = ("patches=fast", "patches=fast_3", "patches=drawn")


@pytest.mark.parametrize("choice", choices())
def test_every_file_composes_and_validates(tmp_path, choice) -> None:
    with_patches = ["method=moco_v3"] if choice in NEEDS_PREDICTOR else []
    if choice in ALONE_REFUSED:
        with pytest.raises(ValueError, match=ALONE_REFUSED[choice]):
            config.check(compose(tmp_path, choice))
    else:
        config.check(compose(tmp_path, choice, *with_patches))


def test_a_recipe_yields_to_the_command_line(tmp_path) -> None:
    params = config.check(
        compose(tmp_path, "recipe=dcl/table1_imagenet100", "loss=infonce", "optim.batch_size=64")
    )
    assert (params.recipe, params.loss.kind, params.optim.batch_size) == (
        "dcl/table1_imagenet100",
        "infonce",
        64,
    )


def test_yaml_1_2_numbers(tmp_path) -> None:
    text = (ROOT / "params.yaml").read_text().replace("weight_decay: 0.0005", "weight_decay: 1e-3")
    assert "1e-3" in text
    (tmp_path / "params.yaml").write_text(text)
    assert config.load(tmp_path / "params.yaml").optim.weight_decay == 0.001


HEAD = {"hidden": [], "out": 8, "norm": False, "last_norm": "none", "last_bias": True, "std": None}
EMA = {"momentum": 0.9, "schedule": "constant"}
MOCO = {
    "kind": "moco",
    "projector": HEAD,
    "queue": 64,
    "ema": EMA,
    "shuffle": True,
    "keys": "second",
    "symmetric": False,
    "scale": 1,
}
BYOL = {"kind": "byol", "projector": HEAD, "predictor": HEAD, "ema": EMA, "scale": 2}
SIMO = {
    "kind": "simo",
    "projector": HEAD,
    "ema": EMA,
    "shuffle": False,
    "negatives": None,
    "sampling": None,
    "scale": 1,
}
COMBINE = {"kind": "combine", "grid": 2, "choose": 2, "stage": "final", "pairs": "all"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"loss": {"kind": "dclx"}},
            "loss: kind=dclx is unknown; choose one of cosine, dcl, dclw, infonce, jcl",
        ),
        (
            {"loss": {"kind": "dclw", "sigma": -1, "detach_weight": True}},
            "loss.sigma=-1: input should be greater than 0",
        ),
        ({"loss": {"kind": "infonce"}}, "loss.alpha is missing"),
        ({"loss": {"kind": "dcl", "sigma": 1}}, "loss: unknown key sigma; choose one of kind"),
        ({"sede": 1}, "unknown key sede; choose one of seed, recipe, dataset"),
        ({"loss": {"kind": "cosine"}}, "loss=cosine does not look at the negatives that method=simclr gives"),
        ({"loss": {"kind": "cosine"}}, "choose loss=dcl or dclw or infonce"),
        ({"temperature": None}, "temperature=null, but method=simclr needs one"),
        ({"method": BYOL}, "method=byol gives no negatives, which loss=dcl needs; choose loss=cosine"),
        (
            {"method": BYOL, "loss": {"kind": "cosine"}},
            "temperature=0.1 has no effect with method=byol; choose temperature=null",
        ),
        (
            {
                "method": BYOL | {"predictor": HEAD | {"out": 9}},
                "loss": {"kind": "cosine"},
                "temperature": None,
            },
            "method.predictor.out=9 differs from method.projector.out=8",
        ),
        (
            {"method": BYOL | {"predictor": HEAD | {"last_norm": "plain"}}},
            "last_bias=true has no effect before last_norm=plain",
        ),
        (
            {"loss": {"kind": "jcl", "strength": 4, "ramp": True, "unbiased": False}},
            "loss=jcl needs the covariance of several keys an image, of which method=simclr gives one",
        ),
        (
            {"patches": COMBINE},
            "method=simclr takes no combinatorial patches, which need a predictor; choose patches=whole or",
        ),
        ({"patches": COMBINE}, "method=byol or moco_v3 or nnclr or simsiam"),
        ({"patches": {"kind": "cut"}}, "patches: kind=cut is unknown; choose one of whole, combine"),
        ({"patches": COMBINE | {"choose": 5}}, "choose=5 of a 2 x 2 grid is more than there are"),
        ({"patches": COMBINE | {"grid": 3, "pairs": "drawn"}}, "pairs=drawn is for grid=2 and choose=2"),
        (
            {"patches": COMBINE | {"stage": "input"}},
            "stage=input stitches neighbours: choose pairs=adjacent or drawn",
        ),
        (
            {"method": SIMO | {"negatives": 16}},
            "negatives=16 with sampling=None: sampling is shared or per_query",
        ),
        (
            {"method": SIMO | {"negatives": 256, "sampling": "shared"}},
            "method.negatives=256, but optim.batch_size=128 has 127 for a query; choose null for all",
        ),
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


def test_detectron2_holds_no_small_stem() -> None:
    values = config.read(ROOT / "params.yaml")
    values["transfers"]["voc_c4"]["engine"] = "detectron2"
    config.check(values)
    values["backbone"]["stem"] = "small"
    with pytest.raises(ValueError, match="transfers.voc_c4.engine=detectron2 holds a ResNet with a 7x7 stem"):
        config.check(values)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optim.nesterov", True, "nesterov=true is for kind=sgd, kind=lars would ignore it"),
        ("optim.lars", None, "lars goes with kind=lars and only with it, found kind=lars"),
        ("optim.betas", [0.9, 0.99], "betas goes with kind=adamw and only with it, found kind=lars"),
        (
            "optim.milestones",
            [60, 80],
            "milestones=[60.0, 80.0] are fractions of the run, ascending: 120 of 200 epochs is 0.6",
        ),
        ("optim.warmup_epochs", 50, "warmup_epochs=50.0 is more than epochs=15.0; lower it"),
        ("optim.kind", "adamw", "momentum=0.9 is for kind=sgd or lars, kind=adamw has betas"),
        ("optim.warmup_epochs", 0, "warmup_start=0.1 without warm-up would be ignored"),
        ("optim.schedule", "constant", "final=0.5 is where a cosine ends, schedule=constant would ignore it"),
        (
            "optim.predictor_lr",
            "fixed",
            "optim.predictor_lr=fixed, but method=simclr has no predictor; choose scheduled",
        ),
        (
            "views.random.order",
            ["jitter", "blur"],
            "order=['jitter', 'blur'] must name each of jitter, grayscale",
        ),
        (
            "optim.milestones",
            [0.5],
            "schedule=cosine with milestones=[0.5]: they go with schedule=steps alone",
        ),
        ("optim.monitor.k", 1000, "k=1000 neighbours cannot come from bank=256 images"),
        ("views.random.area", [1.0, 0.2], "[1.0, 0.2] must be an ascending pair of non-negative numbers"),
        ("views.random.blur.kernel", 4, "kernel=4 must be an odd number of taps"),
        ("dataset.scenes.side", [10, 500], "side=[10, 500] does not fit into scenes of size=128"),
        (
            "transfers.voc_c4.detector",
            "mask_rcnn_c4",
            "detector=mask_rcnn_c4 needs masks, which kind=voc does not have",
        ),
        (
            "transfers.voc_c4.milestones",
            [240],
            "milestones=[240] must be ascending and between 0 and iterations=240",
        ),
        (
            "transfers.voc_c4.batch_size",
            1000,
            "batch_size=1000 leaves 2 iterations, so that milestones=[200] coincide",
        ),
        ("transfers.voc_c4.warmup", 241, "warmup=241 exceeds iterations=240; lower it"),
        (
            "transfers.voc_c4.test",
            "test2007",
            "'test2007' is not a VOC split: expected <year>/<list>, such as 2007/trainval",
        ),
        ("transfers.voc_c4.pooled", 7, "pooled=7 must be even, since res5 halves it; the papers use 14"),
        ("transfers.voc_c4.backbone_lr", 0, "transfers.voc_c4.backbone_lr=0: input should be greater than 0"),
        (
            "transfers.coco_c4.detector",
            "faster_rcnn_fpn",
            "faster_rcnn_fpn requires pooled=7 and five anchors, one each for P2",
        ),
    ],
)
def test_mistakes_inside_a_section_are_named(key, value, message) -> None:
    values = config.read(ROOT / "params.yaml")
    lars = {"eta": 0.001, "eps": 0, "adapt_1d": False, "norm": "sum", "order": "ratio"}
    values["optim"] |= {"kind": "lars", "lars": lars, "warmup_start": 0.1, "final": 0.5}
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


def test_views_are_as_the_method_takes_them() -> None:
    values = config.read(ROOT / "params.yaml")
    values["views"]["random"]["count"] = 1
    with pytest.raises(ValueError, match="method=simclr takes two views or more, found 1: 32 px"):
        config.check(values)
    values["views"]["small"] = values["views"]["random"] | {"size": 16}
    with pytest.raises(ValueError, match="method=simclr takes 2 views of one size first, found 32 px, 16 px"):
        config.check(values)
    values["views"]["random"]["count"] = 2
    config.check(values)
    with pytest.raises(
        ValueError,
        match="takes 3 views of one size first .with keys=rest all views after the first are keys., found",
    ):
        config.check(values | {"method": MOCO | {"keys": "rest", "shuffle": False}})
    values["views"]["small"]["size"] = 15
    cut = {"method": BYOL, "loss": {"kind": "cosine"}, "temperature": None, "patches": COMBINE}
    with pytest.raises(ValueError, match="views of 15 px cannot be cut into a grid of 2 x 2 patches"):
        config.check(values | cut)


def test_byol_brings_its_loss_and_yields_to_the_command_line(tmp_path) -> None:
    assert config.check(compose(tmp_path, "method=byol")).loss.kind == "cosine"
    with pytest.raises(
        ValueError, match="method=byol gives no negatives, which loss=dclw needs; choose loss=cosine"
    ):
        config.check(compose(tmp_path, "method=byol", "loss=dclw"))
    assert config.check(compose(tmp_path, "method=fast_moco")).patches.kind == "combine"
    assert config.check(compose(tmp_path, "method=fast_moco", "patches=whole")).patches.kind == "whole"


def test_a_baseline_names_evaluations_that_exist() -> None:
    values = config.read(ROOT / "params.yaml")
    values["baselines"]["random"]["evaluations"] = ["knm"]
    with pytest.raises(
        ValueError, match=r"baselines.random.evaluations names knm, but evaluations has knn, linear"
    ):
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
    assert (
        unknown.stderr
        == "Error: evaluations in params.yaml does not contain 'knm'; choose one of knn, linear, semi_1, semi_10\n"
    )
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
    stages = (
        ["transfer", "voc_c4"],
        ["evaluate", "knn"],
        ["analyze", "npc"],
        ["baseline", "random"],
        ["export", "onnx"],
        ["evaluate", "knn", "--backbone", "models/none.pth"],
        ["evaluate", "knn", "--prefix", "module."],
    )
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda stage: run(f"pipeline.{stage[0]}", *stage[1:], cwd=project), stages))
    for result in results:
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        remedies = ("dvc repro", "put VOCdevkit", "no file models/none.pth", "give --backbone FILE too")
        assert any(remedy in result.stderr for remedy in remedies)


def test_repeats_are_means_with_deviations(tmp_path) -> None:
    scores, rates = {3: 60.0, 4: 63.0, 9: 57.0}, {3: 0.1, 4: 0.3, 9: 0.1}
    measured = {seed: {"top1": scores[seed], "labels": 20.0, "base_lr": rates[seed]} for seed in scores}
    seen = []

    def run(seed: int, folder: Path) -> dict[str, float]:
        seen.append((seed, folder))
        return measured[seed]

    metrics = command.repeated(run, [3, 4, 9], 0, tmp_path)
    assert metrics == {"top1": 60.0, "top1_sd": pytest.approx(3.0), "labels": 20.0, "n": 3.0}
    assert seen == [(seed, tmp_path / f"seed-{seed}") for seed in measured]
    assert command.repeated(run, [4], 0, tmp_path) == command.repeated(run, None, 4, tmp_path) == measured[4]
    assert seen[3:] == [(4, tmp_path)] * 2


@pytest.mark.parametrize("seeds", [[], [0, 0], [-1], [2**31]])
def test_seeds_are_different_and_within_bounds(tmp_path, seeds) -> None:
    values = compose(tmp_path)
    for section in (
        values["evaluations"]["linear"],
        values["evaluations"]["semi_1"],
        values["transfers"]["voc_c4"],
    ):
        section["seeds"] = seeds
        with pytest.raises(ValueError, match="seeds"):
            config.check(values)
        section["seeds"] = [3, 1]
    config.check(values)
