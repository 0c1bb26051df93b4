"""Detection transfer: layouts, average precision, detectors."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN

from cl import backbones
from cl.detection import data, models, scenes
from cl.detection.average_precision import THRESHOLDS, Detections, coco, overlap, voc
from cl.detection.config import Config
from cl.detection.data import Record
from cl.detection.transfer import _optimizer, _sample, read, run
from cl.optim import set_lr
from cl.sources import Scenes

REAL = Path(__file__).parent.parent.parent / "shared" / "data"
real = pytest.mark.skipif(not REAL.exists(), reason="real VOC and COCO samples are not at hand")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    scenes.write(Scenes(classes=[0, 4], train=10, val=4, size=96, digit=(32, 48), objects=(1, 3)), folder)
    return folder


def test_scenes_are_the_same_bytes_every_time(drawn, tmp_path) -> None:
    scenes.write(Scenes(classes=[0, 4], train=10, val=4, size=96, digit=(32, 48), objects=(1, 3)), tmp_path)
    files = sorted(p.relative_to(drawn) for p in drawn.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert all((drawn / f).read_bytes() == (tmp_path / f).read_bytes() for f in files)


def test_both_layouts_hold_the_same_objects(drawn) -> None:
    """VOC's boxes count from 1 with both ends; COCO's are x, y, width, height; masks fill their boxes."""
    classes = data.voc_classes(drawn / "VOCdevkit", ["2007/trainval"])
    assert classes == ["four", "zero"]
    from_voc = data.read_voc(drawn / "VOCdevkit", ["2007/trainval"], classes)
    from_coco, categories, names = data.read_coco(drawn / "coco", "train2017")
    assert (categories, names) == ([1, 5], ["zero", "four"])
    assert len(from_voc) == len(from_coco) == 10
    for a, b in zip(from_voc, from_coco, strict=True):
        assert np.array_equal(a.boxes, b.boxes)
        assert [classes[i] for i in a.labels] == [names[i] for i in b.labels]
        for box, mask in zip(b.boxes.astype(int), b.masks(), strict=True):
            rows, columns = np.nonzero(mask)
            assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box.tolist()


@real
def test_real_voc_and_coco_are_read() -> None:
    devkit = REAL / "voc-sample" / "VOCdevkit"
    classes = data.voc_classes(devkit, ["2007/trainval", "2007/test"])
    assert len(classes) == 20
    records = data.read_voc(devkit, ["2007/trainval"], classes)
    assert len(records) == 36
    assert all((r.boxes[:, 2] <= r.width).all() and (r.boxes[:, :2] >= 0).all() for r in records)
    folder = next(p.parent for p in (REAL / "coco-sample").glob("annotations"))
    split = sorted(p.stem.removeprefix("instances_") for p in (folder / "annotations").glob("instances_*"))[-1]
    found, categories, _ = data.read_coco(folder, split)
    assert len(found) == 24
    assert len(categories) == 80
    record = max(found, key=lambda r: len(r.boxes))
    assert record.masks().shape == (len(record.boxes), record.height, record.width)


def test_problems_are_named_with_their_file(drawn, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"no file .*trainval.txt: put VOCdevkit or coco below the folder that CL_RAW"):
        data.read_voc(tmp_path, ["2007/trainval"], ["zero"])
    with pytest.raises(ValueError, match=r"\.xml: unknown class 'zero', expected one of cat"):
        data.read_voc(drawn / "VOCdevkit", ["2007/trainval"], ["cat"])
    with pytest.raises(ValueError, match=r"no file .*instances_train2014.json"):
        data.read_coco(drawn / "coco", "train2014")


def record(boxes: list, labels: list, difficult: list | None = None) -> Record:
    ignored = np.array(difficult or [False] * len(boxes), bool)
    return Record(1, Path(), 100, 100, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64), ignored)


def detections(boxes: list, scores: list, labels: list) -> Detections:
    return Detections(np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(labels, np.int64))


def test_average_precision_by_hand() -> None:
    """Two objects; the first detection hits, the second hits nothing, the third hits the other object, the fourth repeats.

    Precision and recall after each: 1, 1/2; 1/2, 1/2; 2/3, 1; 2/4, 1. Area: 0.5 * 1 + 0.5 * 2/3. Eleven points: recalls
    0 to 0.5 (six of them) see precision 1, the other five 2/3.
    """
    truth = [record([[0, 0, 10, 10], [50, 50, 60, 60]], [0, 0])]
    found = [
        detections([[0, 0, 10, 10], [80, 80, 90, 90], [50, 50, 60, 60], [0, 0, 10, 10]], [0.9, 0.8, 0.7, 0.6], [0, 0, 0, 0])
    ]
    assert voc(found, truth, 1, eleven_points=False)[0, 0] == pytest.approx(100 * (0.5 + 0.5 * 2 / 3))
    assert voc(found, truth, 1, eleven_points=True)[0, 0] == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)


def test_difficult_objects_count_neither_way() -> None:
    truth = [record([[0, 0, 10, 10], [50, 50, 60, 60]], [0, 0], [True, False])]
    found = [detections([[0, 0, 10, 10], [50, 50, 60, 60]], [0.9, 0.8], [0, 0])]
    assert voc(found, truth, 1, eleven_points=False)[0, 0] == pytest.approx(100)


def test_overlap_thresholds_and_missing_classes() -> None:
    truth = [record([[0, 0, 10, 10]], [0]), record([], [])]
    found = [detections([[0, 0, 10, 7.2]], [0.9], [0]), detections([[0, 0, 5, 5]], [0.95], [1])]
    result = voc(found, truth, 2, eleven_points=False)
    assert result[0].tolist() == pytest.approx([100 if t <= 0.7 else 0 for t in THRESHOLDS])
    assert np.isnan(result[1]).all()
    assert overlap(np.array([[0, 0, 2, 2.0]]), np.array([[1, 1, 3, 3.0]]))[0, 0] == pytest.approx(1 / 7)


def test_voc_area_agrees_with_an_independent_evaluation(drawn) -> None:
    """COCO's 101-point average of the same noisy detections lies within a point of the area under the curve."""
    records, categories, names = data.read_coco(drawn / "coco", "val2017")
    rng = np.random.default_rng(0)
    found = []
    for r in records:
        boxes = np.concatenate([r.boxes + rng.normal(0, 1.5, r.boxes.shape), rng.uniform(0, 40, (3, 4)) + [0, 0, 45, 45]])
        labels = np.concatenate([r.labels, rng.integers(0, len(names), 3)])
        found.append(detections(boxes, rng.uniform(0, 1, len(boxes)), labels))
    ours = voc(found, records, len(names), eleven_points=False)
    theirs = coco(found, records, drawn / "coco" / "annotations" / "instances_val2017.json", categories)["box"]
    assert np.nanmean(ours[:, 0]) == pytest.approx(100 * theirs.stats[1], abs=1.5)
    assert 5 < np.nanmean(ours) < 95


def test_perfect_detections_have_full_precision(drawn) -> None:
    records, categories, names = data.read_coco(drawn / "coco", "val2017")
    found = [Detections(r.boxes, np.ones(len(r.boxes), np.float32), r.labels, r.masks()) for r in records]
    evaluations = coco(found, records, drawn / "coco" / "annotations" / "instances_val2017.json", categories)
    assert evaluations["box"].stats[0] == pytest.approx(1)
    assert evaluations["mask"].stats[0] == pytest.approx(1)
    assert np.nanmean(voc(found, records, len(names), eleven_points=True)) == pytest.approx(100)


def test_no_detection_at_all_is_zero(drawn) -> None:
    records, categories, names = data.read_coco(drawn / "coco", "val2017")
    nothing = [detections([], [], []) for _ in records]
    evaluations = coco(nothing, records, drawn / "coco" / "annotations" / "instances_val2017.json", categories)
    assert evaluations["box"].stats[0] == 0
    assert np.nanmean(voc(nothing, records, len(names), eleven_points=True)) == 0


@pytest.mark.parametrize("name", ["voc_c4", "coco_c4"])
def test_a_transfer_runs_from_the_pretrained_backbone(drawn, params, here, quiet, tmp_path, name) -> None:
    """Two iterations: metrics by name, a table by class, a picture; res5 is one module for boxes and masks."""
    config = params.transfers[name].model_copy(
        update={"iterations": 2, "milestones": [], "batch_size": 2, "train_sides": [96], "test_side": 96}
    )
    backbone = backbones.build(params.backbone)
    weights = copy.deepcopy(backbone.state_dict())
    detector = models.build(config, backbone, 2, mean=params.dataset.mean, std=params.dataset.std)
    for theirs, ours in (("conv1", "conv1"), ("layer1", "res2"), ("layer3", "res4")):
        module = detector.backbone.get_submodule(ours)
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, weights[f"{theirs}.{key}"])
    if name == "coco_c4":
        assert detector.roi_heads.mask_head.shared is detector.roi_heads.box_head[0]
    metrics = run(
        config,
        backbones.build(params.backbone),
        read(config, drawn),
        source=params.dataset,
        seed=0,
        machine=here,
        progress=quiet,
        out=tmp_path,
    )
    names = ["ap50", "ap75", "ap"]
    expected = names if name == "voc_c4" else [f"{k}_{m}" for k in ("box", "mask") for m in ("ap", "ap50", "ap75")]
    assert set(metrics) <= set(expected)
    assert (tmp_path / "detections.png").exists()
    assert len((tmp_path / "classes.csv").read_text().splitlines()) == 3


RESNET18 = backbones.Config(kind="resnet18", width=1, stem="imagenet", zero_init_residual=False)
FPN = {"detector": "faster_rcnn_fpn", "pooled": 7, "anchors": [16, 32, 64, 128, 256]}
SMALL = {"iterations": 1, "milestones": [], "batch_size": 2, "train_sides": [96], "test_side": 96}


def small(params, **changes) -> Config:  # type: ignore[no-untyped-def]
    return Config(**params.transfers["coco_c4"].model_dump() | SMALL | changes)


def built(config: Config, params) -> FasterRCNN:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    return models.build(config, backbones.build(RESNET18), 2, mean=params.dataset.mean, std=params.dataset.std)


def test_fpn_has_the_parts_of_the_paper(params) -> None:
    """P2 to P6 with one anchor side each; a head of four 3x3 convolutions and a linear layer, each convolution with norm."""
    detector = built(small(params, **FPN), params)
    levels = detector.backbone(torch.zeros(2, 3, 128, 128)).values()
    assert [tuple(level.shape) for level in levels] == [(2, 256, side, side) for side in (32, 16, 8, 4, 2)]
    assert detector.rpn.anchor_generator.sizes == ((16,), (32,), (64,), (128,), (256,))
    assert detector.rpn.anchor_generator.num_anchors_per_location() == [3] * 5
    head = list(detector.roi_heads.box_head.modules())
    convolutions = [m for m in head if isinstance(m, nn.Conv2d)]
    assert [(m.in_channels, m.out_channels, m.kernel_size) for m in convolutions] == [(256, 256, (3, 3))] * 4
    assert [m.out_features for m in head if isinstance(m, nn.Linear)] == [1024]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in head) == 4
    assert sum(isinstance(m, nn.BatchNorm2d) for m in detector.backbone.fpn.modules()) == 8
    assert detector.roi_heads.box_roi_pool.featmap_names == ["0", "1", "2", "3"]


def test_fpn_trains_every_layer(drawn, params, here) -> None:
    config = small(params, **FPN)
    detector = built(config, params).train()
    batch = [_sample(record, here.device, with_masks=False) for record in read(config, drawn).train[:2]]
    losses = detector(*map(list, zip(*batch, strict=True)))
    assert set(losses) == {"loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"}
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    untrained = [name for name, p in detector.named_parameters() if p.grad is None or not p.grad.any()]
    assert untrained == []
    assert all(p.grad.isfinite().all() for p in detector.parameters())


@pytest.mark.parametrize(("changes", "slow"), [({}, "backbone."), (FPN, "backbone.body.")])
def test_pretrained_layers_have_their_own_rate(params, changes, slow) -> None:
    """A tenth for stem to res4 of C4 (not its res5), and for stem to res5 of FPN (not its pyramid); all others in full."""
    config = small(params, backbone_lr=0.1, **changes)
    detector = built(config, params)
    optimizer = _optimizer(detector, config)
    set_lr(optimizer, 0.01, 0.5)
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    assert len(groups) == sum(len(group["params"]) for group in optimizer.param_groups) == len(list(detector.parameters()))
    for name, parameter in detector.named_parameters():
        norm = isinstance(detector.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d)
        assert groups[parameter]["lr"] == pytest.approx(0.0005 if name.startswith(slow) else 0.005), name
        assert groups[parameter]["weight_decay"] == (0 if norm else config.weight_decay), name


def test_fpn_reports_boxes_alone(drawn, params, here, quiet, tmp_path) -> None:
    config = small(params, **FPN)
    data_set = read(config, drawn)
    backbone = backbones.build(RESNET18)
    metrics = run(config, backbone, data_set, source=params.dataset, seed=0, machine=here, progress=quiet, out=tmp_path)
    assert set(metrics) == {"box_ap", "box_ap50", "box_ap75"}
    assert (tmp_path / "classes.csv").read_text().splitlines()[0] == "class,box_ap"


def test_masks_of_polygons_and_runs() -> None:
    square = [[10, 10, 20, 10, 20, 20, 10, 20]]
    counts = {"size": [4, 4], "counts": [5, 2, 9]}
    one = Record(1, Path(), 30, 30, np.zeros((1, 4)), np.zeros(1), np.zeros(1, bool), [square])
    assert one.masks().sum() == 100
    two = Record(1, Path(), 4, 4, np.zeros((1, 4)), np.zeros(1), np.zeros(1, bool), [counts])
    assert json.dumps(two.masks()[0].T.reshape(-1).tolist()) == json.dumps([0] * 5 + [1] * 2 + [0] * 9)
