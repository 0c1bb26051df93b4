"""VOC and COCO layouts: read as one type, checked, resized."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from cl.detection import coco, scenes, voc
from cl.detection.config import Config
from cl.detection.data import read
from cl.detection.records import Findings, Record
from cl.detection.samples import Sample, TrainImages, ahead, resized_size, sample
from tests.support.tiny import SCENES

REAL = Path(__file__).parents[3] / "shared" / "data"
real = pytest.mark.skipif(not REAL.exists(), reason="real VOC and COCO samples are not at hand")


def test_scenes_are_the_same_bytes_every_time(drawn, tmp_path) -> None:
    scenes.write(SCENES, tmp_path)
    files = sorted(p.relative_to(drawn) for p in drawn.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert all((drawn / f).read_bytes() == (tmp_path / f).read_bytes() for f in files)


def test_scenes_of_what_is_no_photograph(tmp_path) -> None:
    with pytest.raises(
        ValueError, match=r"dataset.scenes.classes=\['cat'\]: expected some of the photographs, but not all"
    ):
        scenes.write(SCENES.model_copy(update={"classes": ["cat"]}), tmp_path)


def test_both_layouts_hold_the_same_objects(drawn) -> None:
    """VOC's boxes count from 1 with both ends; COCO's are x, y, width, height; masks fill their boxes."""
    findings = Findings()
    classes, from_voc, _ = voc.read(drawn / "VOCdevkit", ["2007/trainval"], "2007/test", findings)
    assert classes == ["coins", "grass"]
    assert findings.lines() == ["2 classes in the annotations, taken instead of VOC's twenty: coins, grass"]
    from_coco, categories, names = coco.read(drawn / "coco", "train2017", findings)
    assert not findings.wrong
    assert (categories, names) == ([1, 2], ["grass", "coins"])
    assert len(from_voc) == len(from_coco) == 10
    for a, b in zip(from_voc, from_coco, strict=True):
        assert np.array_equal(a.boxes, b.boxes)
        assert [classes[i] for i in a.labels] == [names[i] for i in b.labels]
        for box, mask in zip(b.boxes.astype(int), b.masks(), strict=True):
            rows, columns = np.nonzero(mask)
            assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box.tolist()


@real
def test_real_voc_and_coco_are_read() -> None:
    findings = Findings()
    devkit = REAL / "voc-sample" / "VOCdevkit"
    classes, records, test = voc.read(devkit, ["2007/trainval"], "2007/test", findings)
    assert classes == voc.CLASSES and not findings.noted
    assert len(records) == 36 and len(test) == 24
    assert all((r.boxes[:, 2] <= r.width).all() and (r.boxes[:, :2] >= 0).all() for r in records)
    found, categories, _ = coco.read(REAL / "coco-sample", "val2017", findings, masks=True)
    assert not findings.wrong
    assert set(findings.noted) <= {"images with crowds, which are not trained on"}
    assert len(found) == 24
    assert len(categories) == 80
    record = max(found, key=lambda r: len(r.boxes))
    assert record.masks().shape == (len(record.boxes), record.height, record.width)


@pytest.fixture
def copied(drawn, tmp_path) -> Path:
    shutil.copytree(drawn, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def voc_config(params) -> Config:
    return params.transfers["voc_c4"]


@pytest.fixture
def coco_config(params) -> Config:
    return params.transfers["coco_c4"]


def changed_xml(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / "VOCdevkit" / "VOC2007" / "Annotations" / f"{name}.xml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def changed_json(folder: Path, change, split: str = "train2017") -> None:  # type: ignore[no-untyped-def]
    path = folder / "coco" / "annotations" / f"instances_{split}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_what_is_wrong_in_voc_is_named_with_its_file(copied, voc_config) -> None:
    """All of it at once."""
    folder = copied / "VOCdevkit" / "VOC2007"
    (folder / "JPEGImages" / "000002.jpg").unlink()
    (folder / "JPEGImages" / "000003.jpg").write_bytes(b"no picture")
    changed_xml(copied, "000004", "<width>96</width>", "<width>100</width>")
    path = folder / "Annotations" / "000005.xml"
    path.write_text(path.read_text().replace("<xmin>", "<xmin>a", 1))
    with pytest.raises(ValueError) as told:
        read(voc_config, copied)
    for part in (
        r"JPEGImages/000002.jpg: missing",
        r"JPEGImages/000003.jpg: cannot be read",
        r"Annotations/000004.xml: says 100x96 pixels, 000004.jpg has 96x96",
        r"Annotations/000005.xml: the box of ",
    ):
        assert part in str(told.value)


def test_missing_and_broken_xml(copied, voc_config) -> None:
    folder = copied / "VOCdevkit" / "VOC2007" / "Annotations"
    (folder / "000001.xml").unlink()
    (folder / "000002.xml").write_text("<annotation>")
    for number in range(3, 9):
        (folder / f"{number:06d}.xml").unlink()
    with pytest.raises(ValueError, match=r"000001.xml: missing; .*000002.xml: no XML .*; and 3 more$"):
        read(voc_config, copied)


def test_missing_lists(tmp_path, voc_config) -> None:
    with pytest.raises(
        ValueError, match=r"no file .*trainval.txt: put VOCdevkit or coco below the folder that CL_RAW"
    ):
        read(voc_config, tmp_path)


def test_boxes_are_cut_off_or_left_out_and_counted(copied, voc_config, tmp_path) -> None:
    """Beyond the image; without area; an image without any object; a subset of the images."""
    before = read(voc_config, copied)
    first = before.train[0]
    tags = ("xmin", "ymin", "xmax", "ymax")
    path = copied / "VOCdevkit" / "VOC2007" / "Annotations" / f"{first.path.stem}.xml"
    path.write_text(
        path.read_text().replace(
            "</annotation>",
            "".join(
                "<object><name>grass</name><bndbox>"
                + "".join(f"<{t}>{v}</{t}>" for t, v in zip(tags, box, strict=True))
                + "</bndbox></object>"
                for box in [(91, 91, 120, 96), (50, 50, 40, 60)]
            )
            + "</annotation>",
        )
    )
    empty = copied / "VOCdevkit" / "VOC2007" / "Annotations" / "000002.xml"
    empty.write_text("<annotation></annotation>")
    data = read(voc_config, copied)
    assert data.train[0].boxes.tolist() == [*first.boxes.tolist(), [90.0, 90.0, 96.0, 96.0]]
    assert len(data.train) == len(before.train) - 1
    lines = data.findings.lines()
    assert (
        f"1 boxes that reach beyond their image, cut off: {first.path.stem}.xml [90.0, 90.0, 120.0, 96.0]"
        in lines
    )
    assert f"1 boxes without area, left out: {first.path.stem}.xml [49.0, 49.0, 40.0, 60.0]" in lines
    assert "1 training images without objects, left out: 000002.jpg" in lines
    data.findings.write(tmp_path / "data.csv")
    assert len((tmp_path / "data.csv").read_text().splitlines()) == 1 + 3 + len(data.classes)
    few = read(voc_config.model_copy(update={"subset": 3}), copied)
    assert [r.path.name for r in few.train] == [data.train[i].path.name for i in (0, 4, 8)]
    assert len(few.test) == 3


def test_what_is_wrong_in_coco_is_named(copied, coco_config) -> None:
    def change(content: dict) -> None:
        content["annotations"][0]["image_id"] = 999
        content["annotations"][1]["category_id"] = 77
        content["annotations"][2]["bbox"] = [1, 2, None, 3]
        del content["annotations"][3]["bbox"]
        content["annotations"][4]["area"] = None
        content["images"][3]["width"] = 100

    changed_json(copied, change)
    (copied / "coco" / "train2017" / "000003.jpg").unlink()
    with pytest.raises(ValueError) as told:
        read(coco_config, copied)
    assert "instances_train2017.json: annotation 1 is of image 999, which is not listed" in str(told.value)
    assert "annotation 2 has category 77, which is not listed" in str(told.value)
    assert "annotation 3 has bbox [1, 2, None, 3], expected four numbers" in str(told.value)
    assert "annotation 4 has bbox None, expected four numbers" in str(told.value)
    assert str(told.value).endswith("; and 2 more")
    (copied / "coco" / "train2017" / "000003.jpg").write_bytes(b"no picture")
    changed_json(copied, lambda content: content.update(annotations=[]))
    with pytest.raises(ValueError) as told:
        read(coco_config, copied)
    assert "train2017/000003.jpg: cannot be read" in str(told.value)
    assert "instances_train2017.json: says 100x96 pixels, 000004.jpg has 96x96" in str(told.value)
    (copied / "coco" / "train2017" / "000003.jpg").unlink()
    with pytest.raises(ValueError, match=r"train2017/000003.jpg: missing"):
        read(coco_config, copied)
    changed_json(copied, lambda content: content.pop("images"))
    with pytest.raises(ValueError, match="instances_train2017.json is no list of COCO's instances .*images"):
        read(coco_config, copied)


@pytest.mark.parametrize("identity", [0, 2, "3", None])
def test_annotations_of_coco_need_an_id(copied, coco_config, identity) -> None:
    """0 is pycocotools' word for "no object", with which a perfect detector would have 60 percent."""
    changed_json(copied, lambda content: content["annotations"][0].update(id=identity), "val2017")
    with pytest.raises(
        ValueError, match=rf"annotation {2 if identity == 2 else identity} needs an id of its own"
    ):
        read(coco_config, copied)


def test_classes_and_images_of_coco_must_be_the_same_in_training_and_test(copied, coco_config) -> None:
    changed_json(
        copied, lambda content: [c.update(name=n) for c, n in zip(content["categories"], "ab", strict=True)]
    )
    with pytest.raises(
        ValueError, match=r"instances_train2017.json and instances_val2017.json .* have different categories"
    ):
        read(coco_config, copied)
    changed_json(copied, lambda content: content["images"].append(content["images"][0]))
    with pytest.raises(ValueError, match="11 images have 10 different ids"):
        read(coco_config, copied)


@pytest.mark.parametrize(
    "segmentation",
    [None, [], 3, [1, 2, 3, 4, 5, 6], [[1, 2, 3, 4]], {"size": [96, 96]}, {"size": [9, 9], "counts": "1"}],
)
def test_masks_of_coco(copied, coco_config, segmentation) -> None:
    """What is no mask is left out of the training images, and an error in the test images, which its evaluators read."""
    change = lambda content: content["annotations"][0].update(segmentation=segmentation)  # noqa: E731
    changed_json(copied, change)
    assert any(
        line.startswith("1 objects without a mask") for line in read(coco_config, copied).findings.lines()
    )
    changed_json(copied, change, "val2017")
    with pytest.raises(
        ValueError, match=r"\(1\): the mask of a test object is neither polygons nor runs of 96x96 pixels"
    ):
        read(coco_config, copied)


def test_polygons_of_two_corners_are_left_out(copied, coco_config) -> None:
    outline = [1.0, 2, 30, 2, 30, 40]
    changed_json(
        copied, lambda content: content["annotations"][0].update(segmentation=[[1, 2, 3, 4], outline])
    )
    data = read(coco_config, copied)
    assert [outline] in [s for record in data.train for s in record.segmentations or []]


def test_misspelt_and_missing_names_of_voc(copied, voc_config) -> None:
    annotations = copied / "VOCdevkit" / "VOC2007" / "Annotations"
    for number, name in ((1, "Person"), (2, " ")):
        path = annotations / f"{number:06d}.xml"
        path.write_text(f"<annotation><object><name>{name}</name></object></annotation>")
    with pytest.raises(
        ValueError, match=r"1.xml: class 'Person', expected 'person'; .*2.xml: an object without a name"
    ):
        read(voc_config, copied)


def test_empty_lists(copied, voc_config) -> None:
    (copied / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main" / "test.txt").write_text("")
    with pytest.raises(
        ValueError,
        match=r"10 images with objects to train on in 2007/trainval, and 0 to test on in 2007/test",
    ):
        read(voc_config, copied)
    (copied / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main" / "test.txt").write_bytes(
        "000001".encode("utf-16")
    )
    with pytest.raises(ValueError, match="test.txt is not in UTF-8"):
        read(voc_config, copied)


def test_what_is_trained_on_has_a_digest(copied, coco_config) -> None:
    before = read(coco_config, copied).digest()
    changed_json(
        copied, lambda content: content["annotations"][0].update(segmentation=[[1, 2, 30, 2, 30, 40]])
    )
    assert read(coco_config, copied).digest() != before


def test_gaps_crowds_and_masks_of_coco(copied, coco_config) -> None:
    """Categories without objects are told; crowds and objects without a mask are not trained on; tests keep crowds."""

    def change(content: dict) -> None:
        content["categories"].append({"id": 90, "name": "toothbrush"})
        content["annotations"][0]["iscrowd"] = 1

    for split in ("train2017", "val2017"):
        changed_json(copied, change, split)
    changed_json(copied, lambda content: content["annotations"][1].update(segmentation=[[1, 2, 3, 4]]))
    before = coco.read(copied / "coco", "train2017", Findings())[0]
    data = read(coco_config, copied)
    assert data.categories == [1, 2, 90]
    assert "1 categories without an object to train on: toothbrush" in data.findings.lines()
    assert any(line.startswith("2 images with crowds") for line in data.findings.lines())
    assert any(line.startswith("1 objects without a mask, left out: 00000") for line in data.findings.lines())
    assert sum(len(r.boxes) for r in data.train) == sum(len(r.boxes) for r in before) - 2
    assert sum(r.ignored.sum() for r in data.test) == 1
    changed_json(copied, lambda content: content["categories"].pop())
    with pytest.raises(
        ValueError, match=r"instances_train2017.json and instances_val2017.json .* have different categories"
    ):
        read(coco_config, copied)


def test_an_image_that_is_cut_off_is_refused_when_it_is_read(tmp_path) -> None:
    Picture.new("RGB", (20, 10)).save(tmp_path / "a.png")
    record = Record(1, tmp_path / "a.png", 20, 10, np.zeros((0, 4)), np.zeros(0), np.zeros(0, bool))
    assert record.picture().size == (20, 10)
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:50])
    with pytest.raises(ValueError, match="a.png cannot be read"):
        record.picture()


def test_masks_are_resized_by_the_centres_of_pixels() -> None:
    """As PIL does, by a factor that is no whole number."""
    square = [[100, 100, 140, 100, 140, 140, 100, 140]]
    record = Record(1, Path(), 480, 480, np.zeros((1, 4)), np.zeros(1), np.zeros(1, bool), [square])
    resized = Sample(torch.zeros(3, 800, 800), torch.zeros(1, 4), torch.zeros(1), record, False).masks()
    assert np.array_equal(
        resized[0], Picture.fromarray(record.masks()[0]).resize((800, 800), Picture.Resampling.NEAREST)
    )


def test_masks_of_polygons_and_runs() -> None:
    square = [[10, 10, 20, 10, 20, 20, 10, 20]]
    counts = {"size": [4, 4], "counts": [5, 2, 9]}
    one = Record(1, Path(), 30, 30, np.zeros((1, 4)), np.zeros(1), np.zeros(1, bool), [square])
    assert one.masks().sum() == 100
    two = Record(1, Path(), 4, 4, np.zeros((1, 4)), np.zeros(1), np.zeros(1, bool), [counts])
    assert json.dumps(two.masks()[0].T.reshape(-1).tolist()) == json.dumps([0] * 5 + [1] * 2 + [0] * 9)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((500, 375), (1067, 800)),
        ((375, 500), (800, 1067)),
        ((640, 160), (1333, 333)),
        ((100, 100), (800, 800)),
    ],
)
def test_the_short_side_is_given_and_the_long_one_bounded(size, expected) -> None:
    assert resized_size(*size, 800, 1333) == expected


@pytest.mark.parametrize("mirrored", [False, True])
def test_boxes_masks_and_outlines_move_with_the_image(tmp_path, mirrored) -> None:
    """A white square on black, twice as large: boxes, masks and outlines still cover it."""
    pixels = np.zeros((20, 30, 3), np.uint8)
    pixels[5:10, 4:12] = 255
    Picture.fromarray(pixels).save(tmp_path / "a.png")
    outline = [4, 5, 12, 5, 12, 10, 4, 10]
    box = np.array([[4, 5, 12, 10]], np.float32)
    made = sample(
        Record(1, tmp_path / "a.png", 30, 20, box, np.array([0]), np.zeros(1, bool), [[outline]]),
        40,
        99,
        mirrored=mirrored,
    )
    left = 60 - 24 if mirrored else 8
    assert made.image.shape == (3, 40, 60)
    assert made.boxes.tolist() == [[left, 10, left + 16, 20]]
    inside = torch.zeros(1, 40, 60, dtype=torch.uint8)
    inside[:, 10:20, left : left + 16] = 1
    assert torch.equal(made.masks(), inside)
    points = made.polygons()[0][0].reshape(-1, 2)
    assert {tuple(p) for p in points.tolist()} == {(left, 10), (left + 16, 10), (left + 16, 20), (left, 20)}
    assert (made.image[0][inside[0] == 1].float().mean() > 200) and (
        made.image[0][inside[0] == 0].float().mean() < 5
    )


def test_batches_are_of_seed_and_step_exclusive(drawn, coco_config, monkeypatch) -> None:
    """Whatever the workers; and the ranks' shares, in the order of shape, make up the batch of one process."""
    config = coco_config.model_copy(update={"batch_size": 4, "train_sides": [64, 96]})
    records = read(config, drawn).train

    def batches(start: int, stop: int, workers: int = 0, seed: int = 3) -> list[list[tuple]]:
        made = TrainImages(
            records, config, seed, lambda s: (s.record.path.name, s.mirrored, *s.image.shape)
        ).batches
        return list(made(start, stop, workers))

    whole = batches(0, 5)
    assert whole == batches(0, 5, workers=2)
    assert whole[3:] == batches(3, 5)
    assert whole != batches(0, 5, seed=4)
    assert {entry[1] for batch in whole for entry in batch} == {False, True}
    assert {entry[3] for batch in whole for entry in batch} == {64, 96}
    monkeypatch.setattr("cl.detection.samples.ranks", lambda: 2)
    shares = []
    for number in (0, 1):
        monkeypatch.setattr("cl.detection.samples.rank", lambda number=number: number)
        shares.append(batches(0, 5))
    assert [a + b for a, b in zip(*shares, strict=True)] == whole


def test_what_goes_wrong_in_a_thread_is_told() -> None:
    def invert(x: int) -> float:
        return 1 / x

    assert list(ahead(invert, [1, 2, 4], 2)) == [1, 0.5, 0.25]
    results = ahead(invert, [4, 0, 1], 2)
    assert next(results) == 0.25
    with pytest.raises(ZeroDivisionError):
        next(results)
