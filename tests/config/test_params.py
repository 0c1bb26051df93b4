"""The parameters, and the answers to mistakes in them: the key, the value found, and what to do."""

import copy
import re
from functools import cache, partial
from typing import Any

import pytest
from ruamel.yaml import YAML

from cl import config
from tests.support.methods import FAST, config_of
from tests.support.project import ROOT, compose


def method(kind: str, **settings: Any) -> dict[str, Any]:
    return config_of(kind, **settings).model_dump()


defaults = cache(partial(config.read, ROOT / "params.yaml"))


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """params.yaml with these values at dotted keys."""
    values = copy.deepcopy(defaults())
    for key, value in copy.deepcopy(changes).items():
        *path, last = key.split(".")
        section = values
        for part in path:
            section = section[part]
        section[last] = value
    return values


BYOL = {"method": method("byol"), "loss": {"kind": "cosine"}, "temperature": None}
JCL = {"kind": "jcl", "strength": 4, "ramp": True}
CUT = FAST.model_dump()
ADAMW = {"optim.kind": "adamw", "optim.betas": [0.9, 0.99]}
SUPERVISED = "baselines.supervised.training"
VOC, COCO = "transfers.voc_c4.", "transfers.coco_c4."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": {"kind": "dclx"}}, "loss: kind=dclx .*choose .*barlow_twins, .*dclw"),
        ({"loss": {"kind": "infonce"}}, "loss.alpha is missing"),
        ({"loss": {"kind": "dcl", "sigma": 1}}, "loss: unknown key sigma; choose .*kind"),
        ({"sede": 1}, "unknown key sede; did you mean seed"),
        ({"seed": -1}, "seed=-1: .*equal to 0"),
        ({"precision": "fp16"}, "precision='fp16': .*'bf16'"),
        ({"optim.base_lr": float("inf")}, "optim.*base_lr=inf: .*finite"),
        ({"dataset.mean": [0.5, float("nan"), 0.5]}, "dataset.*mean.*=nan: .*finite"),
        ({"dataset.std": [0.2, 0.0, 0.2]}, "dataset.*std.*=0.0: .*greater than 0"),
        ({"loss": {"kind": "cosine"}}, "simclr gives contrasts .*loss=cosine needs pairs .*loss=dcl or dclw"),
        (
            {"loss": JCL},
            "needs several positives .*choose loss=dcl .*of the kinds moco$",
        ),
        ({"temperature": None}, "simclr needs a temperature, found null"),
        (BYOL | {"temperature": 0.1}, "temperature=0.1 .*method.kind=byol; set null"),
        (BYOL | {"method.predictor.out": 9}, "method: predictor.out=9 .*projector.out=5.*choose"),
        (BYOL | {"method.predictor.last_norm": "plain"}, "last_bias=true .*last_norm=plain; choose"),
        ({"method.projector.hidden": []}, "leaves nothing for norm .*choose norm=false"),
        ({"patches": CUT}, "simclr does not take .*patches=whole or method=byol or moco_v3"),
        ({"patches": {"kind": "cut"}}, "patches=.*'cut'.*'whole', 'combine'"),
        ({"patches": CUT | {"choose": 5}}, "choose=5 must be at most 4"),
        ({"patches": CUT | {"grid": 3, "pairs": "drawn"}}, "pairs=drawn needs grid=2 .*found grid=3"),
        ({"patches": CUT | {"stage": "input"}}, "pairs=all .*stage=input; choose pairs=adjacent"),
        ({"method": method("simo") | {"negatives": 16}}, "negatives=16 with sampling=None: give both"),
        ({"method": method("simo", negatives=256, sampling="shared")}, "method.negatives=256 .*127.*choose"),
        ({"bn_group": 48}, "bn_group=48 must divide optim.batch_size=128 .*or be global"),
        ({"optim.microbatches": 4}, "parts of size 32, .*multiple of bn_group=global"),
        ({"bn_group": 128, "method": method("moco", shuffle=True)}, "shuffle=true .*bn_group=128 .*choose"),
        ({"optim.nesterov": True, **ADAMW}, "nesterov is only for kind=sgd, .*adamw; choose nesterov=false"),
        ({"optim.kind": "lars"}, "kind=lars needs lars, found lars=null"),
        ({"optim.milestones": [60, 80]}, r"milestones=\[60.0, 80.0\]; .*needs ascending fractions"),
        ({"optim.schedule": "constant", "optim.final": 0.5}, "final=0.5 .*schedule=constant"),
        (
            {"optim.schedule": "steps", "optim.milestones": [0.5, 0.8], "optim.gamma": [0.1]},
            "gamma=.*one for each",
        ),
        ({"optim.milestones": [0.5]}, r"found schedule=cosine with milestones=\[0.5\]; .*others take none"),
        ({"optim.predictor_lr": "fixed"}, "predictor_lr=fixed .*simclr.*; choose scheduled"),
        ({"views.random.order": ["jitter", "blur"]}, r"order=\['jitter', 'blur'\] must name each of jitter"),
        ({"views.random.area": [1.0, 0.2]}, r"\[1.0, 0.2\] must be an ascending pair"),
        ({"views.random.area": [20, 100]}, "views.random.area.0=20: .*equal to 1; .*area.1=100: "),
        ({"views.random.area": [0, 0]}, "views.random.area.1=0: .*greater than 0"),
        ({"views.random.blur.kernel": 4}, "kernel=4 must be an odd number"),
        (
            {"views.random.count": 1},
            "simclr takes 2 views or more, found 1: 32 px; choose views.random.count=2",
        ),
        ({"evaluations.linear.views.crop.count": 4}, "linear.views.crop: count=4 must be 1"),
        ({f"{SUPERVISED}.views.crop.count": 4}, "training.views.crop: count=4 must be 1"),
        ({"baselines.random.evaluations": ["knm"]}, "random.evaluations names knm; choose .*knn, linear"),
        ({f"{VOC}detector": "mask_rcnn_c4"}, "detector=mask_rcnn_c4 needs masks, .*kind=voc"),
        ({f"{VOC}milestones": [240]}, r"milestones=\[240\] must be ascending .*iterations=240"),
        ({f"{VOC}betas": [0.9, 0.999]}, r"momentum=0.9 .*betas=\[0.9, 0.999\] .*choose momentum=0"),
        ({f"{VOC}test": "test2007"}, "'test2007' .*expected <year>/<list>"),
        ({f"{VOC}backbone_lr": 0}, "transfers.voc_c4.backbone_lr=0: .*greater than 0"),
        ({f"{COCO}detector": "faster_rcnn_fpn"}, "faster_rcnn_fpn requires pooled=7 and five anchors"),
        (
            {f"{VOC}engine": "detectron2", "backbone.stem": "small"},
            "engine=detectron2 needs .*imagenet.*small",
        ),
        (
            {f"{VOC}engine": "detectron2", "backbone.stem": "imagenet", "backbone.width": 0.25},
            r"engine=detectron2 needs .*width=1, .*resnet18 of width 0.25 .*choose .*engine=torchvision",
        ),
    ],
)
def test_mistakes_are_named(changes, message) -> None:
    with pytest.raises(ValueError) as error:
        config.check(changed(changes))
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)


def test_a_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="user or password.*environment") as refused:
        config.check(changed({"dataset.store": "ftp://user:secret@host/shards"}))
    assert "secret" not in str(refused.value)


def test_broken_yaml_is_named(tmp_path) -> None:
    (tmp_path / "params.yaml").write_text("a: [1,\nb")
    with pytest.raises(ValueError, match=r"params.yaml is not valid YAML: .*line 1"):
        config.load(tmp_path / "params.yaml")
    with pytest.raises(ValueError, match=r"nothing.yaml is missing: run this from the top folder"):
        config.load(tmp_path / "nothing.yaml")


def test_large_views_have_one_size_that_can_be_cut() -> None:
    values = changed({"views.random.count": 1})
    values["views"]["small"] = values["views"]["random"] | {"size": 16}
    with pytest.raises(ValueError, match="first 2 views of method.kind=simclr .*found 32 px, 16 px"):
        config.check(values)
    values["views"]["random"]["count"] = 2
    config.check(values)
    with pytest.raises(ValueError, match="first 3 views of method.kind=moco .*found 32 px, 32 px, 16 px"):
        config.check(values | {"method": method("moco", keys="rest", shuffle=False)})
    values["views"]["small"]["size"] = 15
    with pytest.raises(ValueError, match="views of 15 px .*2 x 2 patches; choose a multiple"):
        config.check(values | BYOL | {"patches": CUT})


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


def test_files_are_read_as_yaml_1_2() -> None:
    """As DVC writes them: `on` and `1:30` are text."""
    text = "a: 1e-05\nb: 0x10\nc: on\nd: 1:30\ne: .inf\nf: ~\ng: '1'\nh: [1.5, true]\n"
    assert config.parse(text, "a.yaml") == YAML(typ="safe", pure=True).load(text)
