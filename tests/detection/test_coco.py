"""Data in COCO's layout: every problem is named with its annotation."""

import pytest

from cl.detection import coco
from cl.detection.data import read
from cl.detection.records import Findings
from tests.support.detection import edit_annotations

DIFFERENT_CATEGORIES = r"instances_train2017.json and instances_val2017.json in .* have different categories$"


def test_unusable_annotations_are_named_with_their_ids(copied, coco_config) -> None:
    def change(content: dict) -> None:
        content["annotations"][0]["image_id"] = 999
        content["annotations"][1]["category_id"] = 77
        content["annotations"][2]["bbox"] = [1, 2, None, 3]
        del content["annotations"][3]["bbox"]
        content["annotations"][4]["iscrowd"] = None
        content["images"][3]["width"] = 100

    edit_annotations(copied, change)
    (copied / "coco" / "train2017" / "000003.jpg").unlink()
    with pytest.raises(ValueError) as raised:
        read(coco_config, copied)
    message = str(raised.value)
    assert "instances_train2017.json: annotation 1 has image_id 999, which is not listed" in message
    assert "annotation 2 has category_id 77, which is not listed" in message
    assert "annotation 3 has bbox [1, 2, None, 3], expected four numbers" in message
    assert "annotation 4 has bbox None, expected four numbers" in message
    assert message.endswith("; and 2 more")
    edit_annotations(copied, lambda content: content.update(annotations=[]))
    with pytest.raises(ValueError, match="000003.jpg: missing; .* 100x96 pixels, but 000004.jpg has 96x96"):
        read(coco_config, copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("images"), "train2017.json is not a COCO instances file .*images"),
        (lambda content: content["images"].append(content["images"][0]), "11 images have 10 ids"),
        (
            lambda content: content["images"].append(content["images"][0] | {"id": 999}),
            "train2017.json: lists '000001.jpg' 2 times, expected once",
        ),
        (
            lambda content: content["images"][0].update(file_name="images\\000001.jpg"),
            r"images.000001.jpg: missing; write / between",
        ),
        (lambda content: content["categories"][0].update(name="a"), DIFFERENT_CATEGORIES),
    ],
    ids=["no images", "an id twice", "an image twice", "backslashes", "other categories"],
)
def test_contradictions_are_refused(copied, coco_config, change, message) -> None:
    edit_annotations(copied, change)
    with pytest.raises(ValueError, match=message):
        read(coco_config, copied)


@pytest.mark.parametrize("annotation_id", [0, "3", None])
def test_test_annotations_need_positive_ids(copied, coco_config, annotation_id) -> None:
    """pycocotools reads 0 as "no object": a perfect detector would score 60 percent."""
    change = lambda content: content["annotations"][0].update(id=annotation_id)  # noqa: E731
    edit_annotations(copied, change)
    read(coco_config, copied)
    edit_annotations(copied, change, "val2017")
    with pytest.raises(ValueError, match=f"annotation {annotation_id} needs a unique .* of at least 1"):
        read(coco_config, copied)


def test_polygons_of_two_points_are_dropped(copied, coco_config) -> None:
    polygon = [1.0, 2, 30, 2, 30, 40]
    edit_annotations(
        copied, lambda content: content["annotations"][0].update(segmentation=[[1, 2, 3, 4], polygon])
    )
    data = read(coco_config, copied)
    assert [polygon] in [s for record in data.train for s in record.segmentations or []]


def test_crowds_are_not_trained_on_but_tests_keep_them(copied, coco_config) -> None:
    def add_crowd(content: dict) -> None:
        content["annotations"][0]["iscrowd"] = 1

    for split in ("train2017", "val2017"):
        edit_annotations(copied, add_crowd, split)
    before = coco.read(copied / "coco", ["train2017"], "val2017", Findings(), masks=True).train
    data = read(coco_config, copied)
    lines = data.findings.lines()
    assert any(line.startswith("images with crowds, which are not used for training: 2 (") for line in lines)
    assert sum(len(r.boxes) for r in data.train) == sum(len(r.boxes) for r in before) - 1
    assert sum(r.ignored.sum() for r in data.test) == 1


def test_categories_may_have_gaps_and_those_without_training_objects_are_noted(copied, coco_config) -> None:
    def add_category(content: dict) -> None:
        content["categories"].append({"id": 90, "name": "toothbrush"})

    for split in ("train2017", "val2017"):
        edit_annotations(copied, add_category, split)
    data = read(coco_config, copied)
    assert data.categories == [1, 2, 90]
    assert "categories without training objects: 1 (toothbrush)" in data.findings.lines()
    edit_annotations(copied, lambda content: content["categories"].pop())
    with pytest.raises(ValueError, match=DIFFERENT_CATEGORIES):
        read(coco_config, copied)
