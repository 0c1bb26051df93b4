"""The detectron2 engine: its configuration, always; its models and evaluators where detectron2 is installed."""

import functools
import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from cl.config import check
from cl.detection.average_precision import Detections, encoded
from cl.detection.average_precision import evaluate as evaluate_ours
from cl.detection.config import Config
from cl.detection.data import DataSet, read
from cl.detection.engines._detectron2_settings import names, settings
from cl.detection.samples import TrainImages, resized_size, sample
from cl.detection.transfer import Detection, build_optimizer, estimate_statistics, run
from cl.networks import backbones
from cl.training.optim import lr_factor, set_lr
from tests.detection.test_average_precision import noisy
from tests.detection.test_transfer import FPN, RESNET18, assert_resumes, overfitted, small
from tests.support.project import compose

try:
    import detectron2  # noqa: F401

    absent = None
except ModuleNotFoundError:
    absent = "detectron2 is not installed: `make detectron2` compiles it"
needs_detectron2 = pytest.mark.skipif(absent is not None, reason=str(absent))
REAL = Path(__file__).parents[3] / "shared" / "data"
real = pytest.mark.skipif(not REAL.exists(), reason="real VOC and COCO samples are not at hand")
RESNET50 = RESNET18.model_copy(update={"kind": "resnet50"})
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]

COMMON = {
    "MODEL.META_ARCHITECTURE": "GeneralizedRCNN",
    "MODEL.WEIGHTS": "",
    "MODEL.PIXEL_MEAN": MEAN,
    "MODEL.PIXEL_STD": STD,
    "MODEL.BACKBONE.FREEZE_AT": 0,
    "MODEL.RESNETS.DEPTH": 50,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 256,
    "MODEL.RESNETS.NORM": "SyncBN",
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RPN.BATCH_SIZE_PER_IMAGE": 256,
    "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 512,
    "DATALOADER.ASPECT_RATIO_GROUPING": False,
    "INPUT.FORMAT": "RGB",
    "INPUT.MAX_SIZE_TRAIN": 1333,
    "INPUT.MIN_SIZE_TEST": 800,
    "INPUT.MAX_SIZE_TEST": 1333,
    "SOLVER.IMS_PER_BATCH": 16,
    "SOLVER.BASE_LR": 0.02,
    "SOLVER.AMP.ENABLED": False,
    "SOLVER.MOMENTUM": 0.9,
    "SOLVER.WEIGHT_DECAY": 0.0001,
    "SOLVER.WEIGHT_DECAY_NORM": 0.0,
    "SOLVER.WARMUP_FACTOR": 0.001,
    "TEST.PRECISE_BN.ENABLED": True,
    "TEST.PRECISE_BN.NUM_ITER": 200,
}
C4 = {
    "MODEL.BACKBONE.NAME": "build_resnet_backbone",
    "MODEL.RESNETS.OUT_FEATURES": ["res4"],
    "MODEL.ANCHOR_GENERATOR.SIZES": [[32, 64, 128, 256, 512]],
    "MODEL.RPN.IN_FEATURES": ["res4"],
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 12000,
    "MODEL.RPN.POST_NMS_TOPK_TRAIN": 2000,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": 6000,
    "MODEL.RPN.POST_NMS_TOPK_TEST": 1000,
    "MODEL.ROI_HEADS.NAME": "Res5ROIHeadsExtraNorm",
    "MODEL.ROI_HEADS.IN_FEATURES": ["res4"],
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 14,
    "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 14,
}
VOC = {
    "DATASETS.TRAIN": ["voc_2007_trainval", "voc_2012_trainval"],
    "DATASETS.TEST": ["voc_2007_test"],
    "MODEL.MASK_ON": False,
    "MODEL.ROI_HEADS.NUM_CLASSES": 20,
    "INPUT.MASK_FORMAT": "bitmask",
    "INPUT.MIN_SIZE_TRAIN": [480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800],
    "SOLVER.STEPS": [18000, 22000],
    "SOLVER.MAX_ITER": 24000,
    "SOLVER.WARMUP_ITERS": 100,
}
COCO = {
    "DATASETS.TRAIN": ["coco_2017_train"],
    "DATASETS.TEST": ["coco_2017_val"],
    "MODEL.ROI_HEADS.NUM_CLASSES": 80,
    "INPUT.MASK_FORMAT": "polygon",
    "INPUT.MIN_SIZE_TRAIN": [640, 672, 704, 736, 768, 800],
    "SOLVER.WARMUP_ITERS": 1000,
}
ONCE = {"MODEL.MASK_ON": True, "SOLVER.STEPS": [60000, 80000], "SOLVER.MAX_ITER": 90000}
TWICE = {"MODEL.MASK_ON": True, "SOLVER.STEPS": [120000, 160000], "SOLVER.MAX_ITER": 180000}
PYRAMID = {
    "MODEL.MASK_ON": False,
    "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone",
    "MODEL.RESNETS.OUT_FEATURES": ["res2", "res3", "res4", "res5"],
    "MODEL.FPN.IN_FEATURES": ["res2", "res3", "res4", "res5"],
    "MODEL.FPN.NORM": "SyncBN",
    "MODEL.ANCHOR_GENERATOR.SIZES": [[32], [64], [128], [256], [512]],
    "MODEL.RPN.IN_FEATURES": ["p2", "p3", "p4", "p5", "p6"],
    "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 2000,
    "MODEL.RPN.POST_NMS_TOPK_TRAIN": 1000,
    "MODEL.RPN.PRE_NMS_TOPK_TEST": 1000,
    "MODEL.RPN.POST_NMS_TOPK_TEST": 1000,
    "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
    "MODEL.ROI_HEADS.IN_FEATURES": ["p2", "p3", "p4", "p5"],
    "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
    "MODEL.ROI_BOX_HEAD.NUM_CONV": 4,
    "MODEL.ROI_BOX_HEAD.CONV_DIM": 256,
    "MODEL.ROI_BOX_HEAD.NUM_FC": 1,
    "MODEL.ROI_BOX_HEAD.FC_DIM": 1024,
    "MODEL.ROI_BOX_HEAD.NORM": "SyncBN",
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
    "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 7,
    "INPUT.MASK_FORMAT": "bitmask",
    "SOLVER.STEPS": [51304, 80620],
    "SOLVER.MAX_ITER": 87950,
}
TABLE = {
    "voc_c4_24k": COMMON | C4 | VOC,
    "voc_c4_fastmoco": COMMON | C4 | VOC | {"SOLVER.BASE_LR": 0.01},
    "coco_c4_1x": COMMON | C4 | COCO | ONCE,
    "coco_c4_2x": COMMON | C4 | COCO | TWICE,
    "coco_c4_fastmoco": COMMON | C4 | COCO | ONCE | {"SOLVER.BASE_LR": 0.01},
    "coco_fpn": COMMON | COCO | PYRAMID,
}


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):  # type: ignore[no-untyped-def]
    """The experiment with the papers' transfers."""
    overrides = [
        "dataset=imagenet",
        "views=mocov2",
        "backbone=resnet50",
        "evaluation=[]",
        "analysis=[]",
        "baseline=[]",
    ]
    folder = tmp_path_factory.mktemp("imagenet")
    return check(compose(folder, *overrides, f"transfer=[{','.join(TABLE)}]"))


@pytest.mark.parametrize("name", TABLE)
def test_the_configuration_is_the_papers_key_by_key(imagenet, name) -> None:
    config = imagenet.transfers[name]
    classes = 20 if config.kind == "voc" else 80
    found = settings(config, "resnet50", imagenet.dataset, classes, polygons=config.masks)
    assert found.pop("MODEL.PIXEL_MEAN") == pytest.approx(MEAN)
    assert found.pop("MODEL.PIXEL_STD") == pytest.approx(STD)
    expected = {
        key: value for key, value in TABLE[name].items() if key not in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD")
    }
    assert found == expected


def test_batch_rate_and_schedule_scale_together(imagenet) -> None:
    config = imagenet.transfers["voc_c4_24k"].model_copy(update={"batch_size": 8})
    found = settings(config, "resnet50", imagenet.dataset, 20, polygons=False)
    assert (found["SOLVER.IMS_PER_BATCH"], found["SOLVER.BASE_LR"]) == (8, 0.01)
    assert (found["SOLVER.MAX_ITER"], found["SOLVER.STEPS"], found["SOLVER.WARMUP_ITERS"]) == (
        48000,
        [36000, 44000],
        200,
    )


def test_the_backbone_of_fast_moco_has_a_tenth_of_the_rate(imagenet) -> None:
    for name in ("voc_c4_fastmoco", "coco_c4_fastmoco"):
        config = imagenet.transfers[name]
        assert (config.base_lr, config.base_lr * config.backbone_lr) == (0.01, pytest.approx(0.001))


# What follows needs detectron2.


def build(config: Config, params, data: DataSet, backbone=RESNET50):  # type: ignore[no-untyped-def]
    from cl.detection.engines.detectron2 import Detector

    torch.manual_seed(0)
    network = backbones.build(backbone)
    torch.manual_seed(0)
    return Detector(config, network, data, params.dataset), network


@needs_detectron2
@pytest.mark.parametrize("name", TABLE)
def test_detectron2_takes_every_key(imagenet, drawn, params, name, tmp_path) -> None:
    """The file it writes holds them all; and all tensors of the backbone, and no others, are accounted for."""
    config = imagenet.transfers[name]
    data = read(params.transfers["voc_c4" if config.kind == "voc" else "coco_c4"], drawn)
    detector, backbone = build(config, imagenet, data)
    detector.write(tmp_path)
    written = yaml.safe_load((tmp_path / "detectron2.yaml").read_text())
    for key, value in TABLE[name].items():
        if key not in ("MODEL.ROI_HEADS.NUM_CLASSES", "INPUT.MASK_FORMAT"):
            found = functools.reduce(lambda section, part: section[part], key.split("."), written)
            assert found == (pytest.approx(value) if "PIXEL" in key else value), key
    account = yaml.safe_load((tmp_path / "weights.json").read_text())
    assert len(account["from the backbone"]) == len(names(backbone.state_dict())) == 265
    for new in account["new"]:
        assert new.startswith(("proposal_generator.", "roi_heads.", "backbone.fpn_", "pixel_")), new
    own = detector.network.state_dict()
    for ours, theirs in names(backbone.state_dict()).items():
        place = next(p for p in account["from the backbone"] if p.endswith(f".{ours}"))
        assert torch.equal(own[place], theirs)


@needs_detectron2
@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
@pytest.mark.parametrize("changes", [{}, FPN])
def test_both_backbones_compute_the_same(params, drawn, kind, changes) -> None:
    """res2 to res5 of one image, in eval mode, from the same backbone with statistics of its own."""
    config = small(params, **changes)
    detector, backbone = build(
        config, params, read(config, drawn), RESNET18.model_copy(update={"kind": kind})
    )
    torch.manual_seed(3)
    x = torch.randn(1, 3, 128, 96)
    backbone.train()(torch.randn(4, 3, 64, 64))
    from cl.detection.engines.detectron2 import load

    load(detector.network, backbone)
    detector.eval()
    backbone.eval()
    with torch.no_grad():
        ours, hidden = {}, backbone.maxpool(backbone.relu(backbone.bn1(backbone.conv1(x))))
        for number in (1, 2, 3, 4):
            hidden = ours[f"res{number + 1}"] = backbone.get_submodule(f"layer{number}")(hidden)
        bottom = detector.pretrained
        theirs = {}
        hidden = bottom.stem(x)
        for stage in bottom.stage_names:
            hidden = theirs[stage] = getattr(bottom, stage)(hidden)
        if not changes:  # res5 is a head, with a norm behind it
            theirs["res5"] = detector.network.roi_heads.res5[:-1](hidden)
    assert set(theirs) == set(ours)
    for stage, output in ours.items():
        assert torch.allclose(theirs[stage], output, rtol=1e-4, atol=1e-4), stage
        assert output.abs().max() > 0.1


@needs_detectron2
def test_a_tensor_without_a_place_is_refused(params, drawn) -> None:
    from cl.detection.engines.detectron2 import load

    config = small(params)
    detector, _ = build(config, params, read(config, drawn), RESNET18)
    with pytest.raises(
        ValueError, match="res2.0.conv3.weight of the backbone has 0 places in detectron2's model"
    ):
        load(detector.network, backbones.build(RESNET50))


@needs_detectron2
@pytest.mark.parametrize(
    "changes", [{}, {"backbone_lr": 0.1, "milestones": [7], "warmup": 3, "iterations": 10}]
)
def test_optimizer_and_schedule_are_detectron2s(params, drawn, changes) -> None:
    """Rate and weight decay of every tensor at every step, as its own builders make them from the written configuration."""
    from detectron2.solver import build_lr_scheduler
    from detectron2.solver.build import get_default_optimizer_params

    config = small(params, **{"iterations": 10, "base_lr": 0.03, **changes})
    detector, _ = build(config, params, read(config, drawn), RESNET18)
    solver = detector.cfg.SOLVER
    theirs = torch.optim.SGD(
        get_default_optimizer_params(
            detector,
            base_lr=solver.BASE_LR,
            weight_decay_norm=solver.WEIGHT_DECAY_NORM,
            lr_factor_func=lambda name: config.backbone_lr if name.startswith("network.backbone.") else 1,
        ),
        solver.BASE_LR,
        momentum=solver.MOMENTUM,
        weight_decay=solver.WEIGHT_DECAY,
    )
    scheduler = build_lr_scheduler(detector.cfg, theirs)
    ours = build_optimizer(detector, config)
    schedule = config.solver(7)
    assert ours.defaults["momentum"] == theirs.defaults["momentum"]
    for step in range(10):
        set_lr(ours, schedule.lr(), lr_factor(schedule, step, 10, 7))
        expected, found = (
            {
                parameter: (group["lr"], group["weight_decay"])
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
            for optimizer in (theirs, ours)
        )
        assert set(found) == set(expected)
        for parameter, values in expected.items():
            assert found[parameter] == pytest.approx(values, rel=1e-9)
        scheduler.step()


@needs_detectron2
def test_sizes_are_detectron2s() -> None:
    from detectron2.data.transforms import ResizeShortestEdge

    rng = np.random.default_rng(0)
    for height, width in rng.integers(50, 1000, (500, 2)).tolist():
        side = int(rng.choice([480, 640, 800]))
        theirs = ResizeShortestEdge.get_output_shape(height, width, side, 1333)
        assert resized_size(width, height, side, 1333) == theirs[::-1]


@needs_detectron2
def test_a_training_image_is_detectron2s(drawn, params) -> None:
    """Pixels, boxes and outlines, mirrored and resized, as its own mapper makes them."""
    from detectron2.data import transforms
    from detectron2.data.detection_utils import annotations_to_instances, transform_instance_annotations
    from detectron2.structures import BoxMode

    record = read(params.transfers["coco_c4"], drawn).train[0]
    outline = [[[float(v) for v in (x0, y0, x1, y0, x1, y1)]] for x0, y0, x1, y1 in record.boxes]
    record = replace(record, segmentations=outline)
    ours = sample(record, 160, 400, mirrored=True)
    given = transforms.AugInput(np.asarray(record.picture()))
    flip, size = transforms.RandomFlip(1.0), transforms.ResizeShortestEdge([160], 400, "choice")
    moved = transforms.AugmentationList([size, flip])(given)
    assert np.array_equal(ours.image.permute(1, 2, 0).numpy(), given.image)
    annotations = [
        {"bbox": box, "bbox_mode": BoxMode.XYXY_ABS, "category_id": 0, "segmentation": shape, "iscrowd": 0}
        for box, shape in zip(record.boxes.tolist(), outline, strict=True)
    ]
    shape = given.image.shape[:2]
    theirs = annotations_to_instances(
        [transform_instance_annotations(a, moved, shape) for a in annotations], shape
    )
    assert torch.allclose(theirs.gt_boxes.tensor, ours.boxes, atol=1e-4)
    for a, b in zip(theirs.gt_masks.polygons, ours.polygons(), strict=True):
        np.testing.assert_allclose(a[0], b[0], atol=1e-6)


@needs_detectron2
def test_statistics_are_those_of_its_library(params, here, drawn) -> None:
    """fvcore's estimate over the same batches; it averages variances, ours adds the variance of means, hence the tolerance."""
    from fvcore.nn.precise_bn import update_bn_stats

    config = small(params, "voc_c4", precise_bn=4, iterations=3)
    data = read(config, drawn)
    found = []
    for ours in (True, False):
        detector, _ = build(config, params, data, RESNET18)
        task = Detection(detector, here, 0)
        images = TrainImages(data.train, config, 0, detector.item)
        if ours:
            estimate_statistics(task, images, config)
        else:
            task.train()
            update_bn_stats(task, images.batches(3, 7, 0), 4)
        found.append({name: b for name, b in detector.pretrained.named_buffers() if "running" in name})
    for name, value in found[0].items():
        assert torch.allclose(value, found[1][name], rtol=0.02, atol=2e-3), name


def rounded(found: list[Detections]) -> list[Detections]:
    """As detectron2's VOC evaluator writes them, all scores different."""
    scores = iter(np.random.default_rng(1).permutation(999)[: sum(len(d.scores) for d in found)] / 1000)
    result = []
    for d in found:
        own = np.array(list(itertools.islice(scores, len(d.scores))), np.float32)
        result.append(Detections(d.boxes.round(1), own, d.labels, d.masks))
    return result


@needs_detectron2
@pytest.mark.parametrize("data_set", ["drawn", pytest.param("real", marks=real)])
@pytest.mark.parametrize("name", ["voc_c4", "coco_c4"])
def test_evaluators_agree(params, drawn, tmp_path, name, data_set) -> None:
    """On the same detections: objects with shifted boxes and others."""
    from cl.detection.engines.detectron2 import evaluate

    config = params.transfers[name]
    if data_set == "real":
        (tmp_path / "coco").symlink_to(REAL / "coco-sample")
        (tmp_path / "VOCdevkit").symlink_to(REAL / "voc-sample" / "VOCdevkit")
    data = read(config, drawn if data_set == "drawn" else tmp_path)
    found = rounded(noisy(data))
    if name == "coco_c4":
        rng = np.random.default_rng(2)
        shapes = [
            [(rng.random((r.height, r.width)) > 0.5) for _ in d.scores]
            for d, r in zip(found, data.test, strict=True)
        ]
        for masks, r in zip(shapes, data.test, strict=True):
            masks[: len(r.boxes)] = list(r.masks().astype(bool))
        found = [
            Detections(d.boxes, d.scores, d.labels, encoded(np.stack(m)))
            for d, m in zip(found, shapes, strict=True)
        ]
    ours, theirs = evaluate_ours(found, data, config)[0], evaluate(found, data, config)[0]
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert min(ours["ap50" if name == "voc_c4" else "box_ap50"], 95) > 5


@needs_detectron2
@real
@pytest.mark.parametrize("engine", ["torchvision", "detectron2"])
@pytest.mark.parametrize("name", ["voc_c4", "coco_c4", "coco_fpn"])
def test_both_engines_train_on_real_images(params, here, quiet, tmp_path, name, engine) -> None:
    """A few iterations from the same backbone; the loss falls, and the metrics have the same names."""
    (tmp_path / "coco").symlink_to(REAL / "coco-sample")
    (tmp_path / "VOCdevkit").symlink_to(REAL / "voc-sample" / "VOCdevkit")
    changes = {
        "iterations": 16,
        "train_sides": [160],
        "test_side": 160,
        "base_lr": 0.004,
        "reference_batch": 2,
        "subset": 4,
    }
    if name == "coco_fpn":
        changes |= FPN
    config = small(params, "voc_c4" if name == "voc_c4" else "coco_c4", engine=engine, data="raw", **changes)
    out = tmp_path / "out"
    out.mkdir()
    torch.manual_seed(0)
    backbone = backbones.build(RESNET50)
    data = read(config, tmp_path)
    metrics = run(
        config, backbone, data, source=params.dataset, seed=0, machine=here, progress=quiet, out=out
    )
    first, *_, last = (out / "epochs.csv").read_text().splitlines()[1:]
    assert float(last.split(",")[2]) < float(first.split(",")[2])
    assert {"ap50", "ap75", "ap"} <= {key.removeprefix("box_") for key in metrics}
    assert ("mask_ap" in metrics) == (name == "coco_c4")
    assert (out / "detectron2.yaml").exists() == (engine == "detectron2")


@needs_detectron2
def test_a_stopped_training_goes_on_bit_for_bit(drawn, params, here, quiet, tmp_path) -> None:
    assert_resumes("detectron2", drawn, params, here, quiet, tmp_path)


@needs_detectron2
def test_the_area_of_voc_agrees(params, drawn, tmp_path) -> None:
    """Of the year 2012, in own data whose annotations have no more than names and boxes."""
    from cl.detection.engines.detectron2 import evaluate

    shutil.copytree(drawn / "VOCdevkit" / "VOC2007", tmp_path / "VOCdevkit" / "VOC2012")
    for path in (tmp_path / "VOCdevkit" / "VOC2012" / "Annotations").iterdir():
        path.write_text(re.sub("<(pose|truncated|difficult)>[^<]*</[^>]*>", "", path.read_text()))
    config = Config(
        **params.transfers["voc_c4"].model_dump() | {"train": ["2012/trainval"], "test": "2012/test"}
    )
    data = read(config, tmp_path)
    found = rounded(noisy(data))
    ours, theirs = evaluate_ours(found, data, config)[0], evaluate(found, data, config)[0]
    assert ours == pytest.approx(theirs, abs=1e-6)
    eleven = evaluate_ours(found, read(params.transfers["voc_c4"], drawn), params.transfers["voc_c4"])[0]
    assert abs(ours["ap50"] - eleven["ap50"]) > 0.01


@needs_detectron2
def test_four_images_are_learnt_by_heart(drawn, params, here, quiet, tmp_path) -> None:
    assert overfitted("detectron2", drawn, params, here, quiet, tmp_path) > 90
