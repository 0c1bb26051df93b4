"""Average precision: by hand, at the limits, and against an independent evaluation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cl.detection.average_precision import THRESHOLDS, Detections, coco, encode_masks, evaluate, iou, voc
from cl.detection.config import Config
from cl.detection.data import read
from cl.detection.records import DataSet, Record
from tests.support.detection import detections, noisy


def record(boxes: list, labels: list, difficult: list | None = None) -> Record:
    ignored = np.array(difficult or [False] * len(boxes), bool)
    return Record(
        1, Path(), 100, 100, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64), ignored
    )


@pytest.fixture
def boxes_only(params) -> Config:
    changes = {"detector": "faster_rcnn_fpn", "pooled": 7, "anchors": [8, 16, 32, 64, 128]}
    return params.transfers["coco_c4"].model_copy(update=changes)


@pytest.fixture
def tested(scenes_folder, boxes_only) -> DataSet:
    return read(boxes_only, scenes_folder)


def test_average_precision_by_hand() -> None:
    """Two objects: detections 1 and 3 are correct, 2 hits nothing, 4 repeats 1.

    Precision and recall after each: 1, 1/2; 1/2, 1/2; 2/3, 1; 2/4, 1. Area: 0.5 * 1 + 0.5 * 2/3.
    Eleven points: the precision is 1 at the six recalls 0 to 0.5, and 2/3 at the other five.
    """
    truth = [record([[0, 0, 10, 10], [50, 50, 60, 60]], [0, 0])]
    found = [
        detections(
            [[0, 0, 10, 10], [80, 80, 90, 90], [50, 50, 60, 60], [0, 0, 10, 10]],
            [0.9, 0.8, 0.7, 0.6],
            [0, 0, 0, 0],
        )
    ]
    assert voc(found, truth, 1, eleven_points=False)[0, 0] == pytest.approx(100 * (0.5 + 0.5 * 2 / 3))
    assert voc(found, truth, 1, eleven_points=True)[0, 0] == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)


def test_difficult_objects_count_neither_way() -> None:
    truth = [record([[0, 0, 10, 10], [50, 50, 60, 60]], [0, 0], [True, False])]
    found = [detections([[0, 0, 10, 10], [50, 50, 60, 60]], [0.9, 0.8], [0, 0])]
    assert voc(found, truth, 1, eleven_points=False)[0, 0] == pytest.approx(100)


def test_a_detection_is_correct_up_to_its_overlap_and_a_class_without_objects_is_nan() -> None:
    truth = [record([[0, 0, 10, 10]], [0]), record([], [])]
    found = [detections([[0, 0, 10, 7.2]], [0.9], [0]), detections([[0, 0, 5, 5]], [0.95], [1])]
    result = voc(found, truth, 2, eleven_points=False)
    assert result[0].tolist() == pytest.approx([100 if t <= 0.7 else 0 for t in THRESHOLDS])
    assert np.isnan(result[1]).all()
    assert iou(np.array([[0, 0, 2, 2.0]]), np.array([[1, 1, 3, 3.0]]))[0, 0] == pytest.approx(1 / 7)


def test_voc_area_agrees_with_an_independent_evaluation(tested, boxes_only) -> None:
    """COCO's 101-point average of the same noisy detections is within a point of the area under the curve."""
    ours = voc(noisy(tested), tested.test, len(tested.classes), eleven_points=False)
    theirs = coco(noisy(tested), tested, boxes_only)["box"]
    assert np.nanmean(ours[:, 0]) == pytest.approx(100 * theirs.stats[1], abs=1.5)
    assert 5 < np.nanmean(ours) < 95


def test_metrics_are_means_over_classes(tested, boxes_only, params) -> None:
    metrics, by_class = evaluate(noisy(tested), tested, boxes_only)
    assert metrics["box_ap"] == pytest.approx(by_class["box_ap"].mean())
    assert set(metrics) == {"box_ap", "box_ap50", "box_ap75", "box_ap_s", "box_ap_m"}, "no object is large"
    metrics, by_class = evaluate(noisy(tested), tested, params.transfers["voc_c4"])
    assert metrics == pytest.approx({name: values.mean() for name, values in by_class.items()})


def test_perfect_detections_have_full_precision(scenes_folder, params) -> None:
    config = params.transfers["coco_c4"]
    data = read(config, scenes_folder)
    found = [
        Detections(r.boxes, np.ones(len(r.boxes), np.float32), r.labels, encode_masks(r.masks()))
        for r in data.test
    ]
    metrics, _ = evaluate(found, data, config)
    assert {"box_ap", "mask_ap", "mask_ap50", "mask_ap_s"} <= set(metrics)
    assert all(value == pytest.approx(100) for value in metrics.values())
    assert np.nanmean(voc(found, data.test, len(data.classes), eleven_points=True)) == pytest.approx(100)


@pytest.mark.parametrize("name", ["coco_c4", "voc_c4"])
def test_without_detections_the_same_metrics_are_zero(name, scenes_folder, params) -> None:
    """Those of sizes and classes without objects stay absent, so a mean over seeds has equal metrics."""
    config = params.transfers[name]
    data = read(config, scenes_folder)
    data = replace(data, classes=[*data.classes, "nowhere"])
    if data.annotations and data.categories:
        described = [*data.annotations["categories"], {"id": 99, "name": "nowhere"}]
        annotations = data.annotations | {"categories": described}
        data = replace(data, annotations=annotations, categories=[*data.categories, 99])
    masks = [encode_masks(np.zeros((len(r.boxes) + 3, r.height, r.width), np.uint8)) for r in data.test]
    some = [replace(found, masks=blank) for found, blank in zip(noisy(data), masks, strict=True)]
    something, by_class = evaluate(some, data, config)
    metrics, nothing = evaluate([detections([], [], []) for _ in data.test], data, config)
    assert metrics == dict.fromkeys(something, 0.0)
    assert nothing.keys() == by_class.keys()
    for column, values in nothing.items():
        assert np.array_equal(np.isnan(values), np.isnan(by_class[column])), column
        assert np.isnan(values[-1]), "no object has the last class"
        assert np.nansum(values) == 0


def test_a_subset_is_evaluated_on_its_own_images(tested, boxes_only) -> None:
    """The objects of other images do not count as missed."""
    few = replace(tested, test=tested.test[:2])
    found = [Detections(r.boxes, np.ones(len(r.boxes), np.float32), r.labels) for r in few.test]
    assert evaluate(found, few, boxes_only)[0]["box_ap"] == pytest.approx(100)


def test_masks_count_as_small_by_their_own_area(scenes_folder, params) -> None:
    """Not by that of their box: a small wrong mask in a large box lowers only the small objects' average."""
    config = params.transfers["coco_c4"]
    data = read(config, scenes_folder)
    found = []
    for r in data.test:
        masks = np.concatenate([np.zeros((1, r.height, r.width), np.uint8), r.masks()])
        masks[0, :5, :5] = 1
        boxes = np.concatenate([[[0, 0, 90, 90]], r.boxes])
        scores, labels = np.linspace(1, 0.5, len(masks)), np.r_[r.labels[:1], r.labels]
        found.append(Detections(boxes, scores, labels, encode_masks(masks)))
    metrics, _ = evaluate(found, data, config)
    assert metrics["mask_ap_s"] < 90
    assert metrics["mask_ap_m"] == pytest.approx(100)
