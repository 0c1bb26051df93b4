"""Average precision: by hand, at the limits, and against an independent evaluation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cl.detection.average_precision import THRESHOLDS, Detections, coco, encoded, evaluate, overlap, voc
from cl.detection.data import DataSet, read
from cl.detection.records import Record


def record(boxes: list, labels: list, difficult: list | None = None) -> Record:
    ignored = np.array(difficult or [False] * len(boxes), bool)
    return Record(
        1, Path(), 100, 100, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int64), ignored
    )


def detections(boxes: list, scores: list, labels: list) -> Detections:
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(labels, np.int64)
    )


@pytest.fixture
def boxes_exclusive(params):  # type: ignore[no-untyped-def]
    changes = {"detector": "faster_rcnn_fpn", "pooled": 7, "anchors": [8, 16, 32, 64, 128]}
    return params.transfers["coco_c4"].model_copy(update=changes)


@pytest.fixture
def tested(drawn, boxes_alone) -> DataSet:
    return read(boxes_alone, drawn)


def test_average_precision_by_hand() -> None:
    """Two objects; the first detection hits, the second hits nothing, the third hits the other object, the fourth repeats.

    Precision and recall after each: 1, 1/2; 1/2, 1/2; 2/3, 1; 2/4, 1. Area: 0.5 * 1 + 0.5 * 2/3. Eleven points: recalls
    0 to 0.5 (six of them) see precision 1, the other five 2/3.
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


def test_overlap_thresholds_and_missing_classes() -> None:
    truth = [record([[0, 0, 10, 10]], [0]), record([], [])]
    found = [detections([[0, 0, 10, 7.2]], [0.9], [0]), detections([[0, 0, 5, 5]], [0.95], [1])]
    result = voc(found, truth, 2, eleven_points=False)
    assert result[0].tolist() == pytest.approx([100 if t <= 0.7 else 0 for t in THRESHOLDS])
    assert np.isnan(result[1]).all()
    assert overlap(np.array([[0, 0, 2, 2.0]]), np.array([[1, 1, 3, 3.0]]))[0, 0] == pytest.approx(1 / 7)


def noisy(data: DataSet) -> list[Detections]:
    """The objects with shifted boxes, and some that are none."""
    rng = np.random.default_rng(0)
    found = []
    for r in data.test:
        boxes = np.concatenate(
            [r.boxes + rng.normal(0, 1.5, r.boxes.shape), rng.uniform(0, 40, (3, 4)) + [0, 0, 45, 45]]
        )
        labels = np.concatenate([r.labels, rng.integers(0, len(data.classes), 3)])
        found.append(detections(boxes, rng.uniform(0, 1, len(boxes)), labels))
    return found


def test_voc_area_agrees_with_an_independent_evaluation(tested, boxes_alone) -> None:
    """COCO's 101-point average of the same noisy detections lies within a point of the area under the curve."""
    ours = voc(noisy(tested), tested.test, len(tested.classes), eleven_points=False)
    theirs = coco(noisy(tested), tested, boxes_alone)["box"]
    assert np.nanmean(ours[:, 0]) == pytest.approx(100 * theirs.stats[1], abs=1.5)
    assert 5 < np.nanmean(ours) < 95


def test_means_are_those_of_the_classes(drawn, tested, boxes_alone, params) -> None:
    metrics, by_class = evaluate(noisy(tested), tested, boxes_alone)
    assert metrics["box_ap"] == pytest.approx(by_class["box_ap"].mean())
    assert set(metrics) == {"box_ap", "box_ap50", "box_ap75", "box_ap_s", "box_ap_m"}, "no object is large"
    metrics, by_class = evaluate(noisy(tested), tested, params.transfers["voc_c4"])
    assert metrics == pytest.approx({name: values.mean() for name, values in by_class.items()})


def test_perfect_detections_have_full_precision(drawn, params) -> None:
    config = params.transfers["coco_c4"]
    data = read(config, drawn)
    found = [
        Detections(r.boxes, np.ones(len(r.boxes), np.float32), r.labels, encoded(r.masks()))
        for r in data.test
    ]
    metrics, _ = evaluate(found, data, config)
    assert {"box_ap", "mask_ap", "mask_ap50", "mask_ap_s"} <= set(metrics)
    assert all(value == pytest.approx(100) for value in metrics.values())
    assert np.nanmean(voc(found, data.test, len(data.classes), eleven_points=True)) == pytest.approx(100)


def test_no_detection_at_all_is_zero(tested, boxes_alone) -> None:
    nothing = [detections([], [], []) for _ in tested.test]
    metrics, by_class = evaluate(nothing, tested, boxes_alone)
    assert set(metrics.values()) == {0}
    assert by_class["box_ap"].tolist() == [0, 0]
    assert np.nanmean(voc(nothing, tested.test, len(tested.classes), eleven_points=True)) == 0


def test_a_subset_is_evaluated_on_its_own_images(tested, boxes_alone) -> None:
    """Those that were left out are not missed."""
    few = replace(tested, test=tested.test[:2])
    found = [Detections(r.boxes, np.ones(len(r.boxes), np.float32), r.labels) for r in few.test]
    assert evaluate(found, few, boxes_alone)[0]["box_ap"] == pytest.approx(100)


def test_masks_count_as_small_by_their_own_area(drawn, params) -> None:
    """Not by that of their boxes: a small wrong mask in a large box counts against the average over small objects alone."""
    config = params.transfers["coco_c4"]
    data = read(config, drawn)
    found = []
    for r in data.test:
        masks = np.concatenate([np.zeros((1, r.height, r.width), np.uint8), r.masks()])
        masks[0, :5, :5] = 1
        boxes = np.concatenate([[[0, 0, 90, 90]], r.boxes])
        found.append(
            Detections(boxes, np.linspace(1, 0.5, len(masks)), np.r_[r.labels[:1], r.labels], encoded(masks))
        )
    metrics, _ = evaluate(found, data, config)
    assert metrics["mask_ap_s"] < 90
    assert metrics["mask_ap_m"] == pytest.approx(100)
