"""Both layouts as one data set: clipped, counted, hashed."""

from pathlib import Path

import pytest

from cl.detection.average_precision import coco
from cl.detection.data import read
from tests.support.detection import detections, edit_annotations


def annotation(folder: Path, name: str) -> Path:
    return folder / "VOCdevkit" / "VOC2007" / "Annotations" / f"{name}.xml"


def test_boxes_are_clipped_or_dropped_and_noted(copied, voc_config, tmp_path) -> None:
    first = read(voc_config, copied).train[0]
    objects = "".join(
        f"<object><name>grass</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin>"
        f"<xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
        for x0, y0, x1, y1 in [(91, 91, 120, 96), (50, 50, 40, 60)]
    )
    path = annotation(copied, first.path.stem)
    path.write_text(path.read_text().replace("</annotation>", f"{objects}</annotation>"))
    data = read(voc_config, copied)
    assert data.train[0].boxes.tolist() == [*first.boxes.tolist(), [90.0, 90.0, 96.0, 96.0]]
    beyond, empty = data.findings.lines()[1:]
    assert (
        beyond == f"boxes that extend beyond their image, clipped: 1 ({path.name} [90.0, 90.0, 120.0, 96.0])"
    )
    assert empty == f"boxes without area, dropped: 1 ({path.name} [49.0, 49.0, 40.0, 60.0])"
    data.findings.write(tmp_path / "data.csv")
    assert len((tmp_path / "data.csv").read_text().splitlines()) == 1 + 2 + len(data.classes)


def test_coco_evaluators_count_the_boxes_as_they_are_clipped(copied, coco_config) -> None:
    """A detector cannot find what lies beyond the image, nor a box without area."""

    def edit(content: dict) -> None:
        wide, empty = content["annotations"][:2]
        wide["bbox"][2:] = [1000, 1000]
        empty["bbox"][2:] = [0, 0]

    before = read(coco_config, copied)
    edit_annotations(copied, edit, "val2017")
    data = read(coco_config, copied)
    assert len(data.annotations["annotations"]) == len(before.annotations["annotations"]) - 1
    perfect = [detections(r.boxes, [1.0] * len(r.labels), r.labels) for r in data.test]
    found = coco(perfect, data, coco_config.model_copy(update={"detector": "faster_rcnn_c4"}))["box"]
    assert found.stats[0] == pytest.approx(1)


def test_training_images_without_objects_are_dropped_and_noted(copied, voc_config) -> None:
    annotation(copied, "000002").write_text("<annotation></annotation>")
    data = read(voc_config, copied)
    assert len(data.train) == 9
    assert "training images without objects, dropped: 1 (000002.jpg)" in data.findings.lines()


def test_a_subset_is_evenly_spaced(scenes_folder, voc_config) -> None:
    data = read(voc_config, scenes_folder)
    few = read(voc_config.model_copy(update={"subset": 3}), scenes_folder)
    assert [r.path.name for r in few.train] == [data.train[i].path.name for i in (0, 4, 9)]
    assert len(few.test) == 3


def test_the_digest_covers_the_masks(copied, coco_config) -> None:
    before = read(coco_config, copied).digest()
    edit_annotations(
        copied, lambda content: content["annotations"][0].update(segmentation=[[1, 2, 30, 2, 30, 40]])
    )
    assert read(coco_config, copied).digest() != before
