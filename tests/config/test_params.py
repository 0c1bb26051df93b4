"""The parameters, and the answers to mistakes in them."""

import pytest

from cl import config
from tests.support.project import ROOT, compose


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
            "loss: kind=dclx is unknown; choose one of barlow_twins, cosine, dcl, dclw, debiased",
        ),
        (
            {"loss": {"kind": "dclw", "sigma": -1, "detach_weight": True}},
            "loss.sigma=-1: input should be greater than 0",
        ),
        ({"loss": {"kind": "infonce"}}, "loss.alpha is missing"),
        ({"loss": {"kind": "dcl", "sigma": 1}}, "loss: unknown key sigma; choose one of kind"),
        ({"sede": 1}, "unknown key sede; did you mean seed? Choices: seed, recipe, init, start_from"),
        (
            {"loss": {"kind": "cosine"}},
            "method=simclr gives contrasts with negatives, but loss=cosine needs pairs without negatives",
        ),
        ({"loss": {"kind": "cosine"}}, "choose loss=dcl or dclw or debiased or infonce"),
        ({"temperature": None}, "method=simclr needs a temperature, found temperature=null"),
        (
            {"method": BYOL},
            "method=byol gives pairs without negatives, but loss=dcl needs contrasts with negatives",
        ),
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
            "method: predictor.out=9 differs from projector.out=8",
        ),
        (
            {"method": BYOL | {"predictor": HEAD | {"last_norm": "plain"}}},
            "last_bias=true has no effect before last_norm=plain",
        ),
        (
            {"loss": {"kind": "jcl", "strength": 4, "ramp": True, "unbiased": False}},
            "loss=jcl needs several positives per query; choose loss=dcl or dclw or debiased or infonce",
        ),
        (
            {"patches": COMBINE},
            "method=simclr does not take combinatorial patches, which need a predictor; choose patches=whole",
        ),
        ({"patches": COMBINE}, "method=byol or moco_v3 or nnclr or simsiam"),
        ({"patches": {"kind": "cut"}}, "patches: kind=cut is unknown; choose one of whole, combine"),
        ({"patches": COMBINE | {"choose": 5}}, "choose=5 must be at most 4, the patches of a grid of 2"),
        (
            {"patches": COMBINE | {"grid": 3, "pairs": "drawn"}},
            "pairs=drawn needs grid=2 and choose=2, found grid=3 and choose=2",
        ),
        (
            {"patches": COMBINE | {"stage": "input"}},
            "pairs=all cannot be stitched at stage=input; choose pairs=adjacent or drawn",
        ),
        (
            {"method": SIMO | {"negatives": 16}},
            "negatives=16 with sampling=None: choose sampling=shared or per_query",
        ),
        (
            {"method": SIMO | {"negatives": 256, "sampling": "shared"}},
            "method.negatives=256 exceeds the 127 negatives",
        ),
        (
            {"bn_group": 48},
            "bn_group=48 must divide optim.batch_size=128 into batch-norm groups",
        ),
        ({"precision": "fp16"}, "precision='fp16': input should be 'fp32', 'tf32' or 'bf16'"),
        (
            {"bn_group": 128, "method": MOCO},
            "method.shuffle=true shuffles between batch-norm groups, but bn_group=128 makes one",
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


def test_detectron2_refuses_a_small_stem() -> None:
    values = config.read(ROOT / "params.yaml")
    values["transfers"]["voc_c4"]["engine"] = "detectron2"
    config.check(values)
    values["backbone"]["stem"] = "small"
    with pytest.raises(
        ValueError,
        match="voc_c4.engine=detectron2 needs .*imagenet.* small stem.*choose",
    ):
        config.check(values)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optim.nesterov", True, "nesterov=true is only for kind=sgd, found kind=lars"),
        ("optim.lars", None, "kind=lars needs lars, found lars=null"),
        ("optim.betas", [0.9, 0.99], "betas is only for kind=adamw, found kind=lars; choose betas=null"),
        (
            "optim.milestones",
            [60, 80],
            "milestones=[60.0, 80.0] must be ascending fractions of the run, such as 0.6 for 120 of 200",
        ),
        (
            "optim.kind",
            "adamw",
            "momentum=0.9 is only for kind=sgd or lars, found kind=adamw; choose momentum=0",
        ),
        ("optim.warmup_epochs", 0, "warmup_start=0.1 has no effect without warm-up; set warmup_epochs"),
        (
            "optim.schedule",
            "constant",
            "final=0.5 is only for cosine schedules, found schedule=constant; choose 0",
        ),
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
            "only then; found schedule=cosine with milestones=[0.5]",
        ),
        ("optim.monitor.k", 1000, "k=1000 must be at most bank=256"),
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
        (
            "transfers.voc_c4.betas",
            [0.9, 0.999],
            "momentum=0.9 is only for SGD, but betas=[0.9, 0.999] choose AdamW; choose momentum=0 or",
        ),
        ("transfers.voc_c4.warmup", 241, "warmup=241 exceeds iterations=240; lower it"),
        (
            "transfers.voc_c4.test",
            "test2007",
            "'test2007' is not a VOC split: expected <year>/<list>, such as 2007/trainval",
        ),
        ("transfers.voc_c4.pooled", 7, "pooled=7 must be even, since res5 halves it"),
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
    with pytest.raises(ValueError, match=r"params.yaml is not valid YAML: .*line 2"):
        config.load(tmp_path / "params.yaml")
    with pytest.raises(ValueError, match=r"nothing.yaml is missing: run this from the top folder"):
        config.load(tmp_path / "nothing.yaml")


def test_views_are_as_the_method_takes_them() -> None:
    values = config.read(ROOT / "params.yaml")
    values["views"]["random"]["count"] = 1
    with pytest.raises(ValueError, match="method=simclr takes 2 views or more, found 1: 32 px"):
        config.check(values)
    values["views"]["small"] = values["views"]["random"] | {"size": 16}
    with pytest.raises(
        ValueError, match="the first 2 views of method=simclr must be of one size, found 32 px, 16 px"
    ):
        config.check(values)
    values["views"]["random"]["count"] = 2
    config.check(values)
    with pytest.raises(
        ValueError,
        match="the first 3 views of method=moco must be of one size, found 32 px, 32 px, 16 px",
    ):
        config.check(values | {"method": MOCO | {"keys": "rest", "shuffle": False}})
    values["views"]["small"]["size"] = 15
    cut = {"method": BYOL, "loss": {"kind": "cosine"}, "temperature": None, "patches": COMBINE}
    with pytest.raises(ValueError, match="views of 15 px cannot be cut into a grid of 2 x 2 patches"):
        config.check(values | cut)


def test_a_baseline_names_evaluations_that_exist() -> None:
    values = config.read(ROOT / "params.yaml")
    values["baselines"]["random"]["evaluations"] = ["knm"]
    with pytest.raises(
        ValueError, match=r"baselines.random.evaluations names knm, but evaluations has knn, linear"
    ):
        config.check(values)


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
