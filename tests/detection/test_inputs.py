"""Annotated pictures as people have them: read right, or named before training."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture
from PIL import ImageOps
from pycocotools import mask as rle

from cl.detection.average_precision import Detections, encode_masks, evaluate, iou
from cl.detection.coco import _runs
from cl.detection.data import read
from cl.images.decoding import ORIENTATION
from tests.support.detection import edit_annotations

FULL = rle.encode(np.ones((96, 96), np.uint8, order="F"))["counts"].decode()


def voc(root: Path) -> Path:
    return root / "VOCdevkit" / "VOC2007"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("orientation", range(2, 9))
def test_pictures_are_upright_by_exif(orientation, copied, voc_config) -> None:
    """Annotated upright, as detectron2 expects: 96 px wide and 64 high."""
    path = voc(copied) / "JPEGImages/000002.jpg"
    stored = Picture.open(path).resize((64, 96) if orientation >= 5 else (96, 64))
    exif = Picture.Exif()
    exif[ORIENTATION] = orientation
    stored.save(path, exif=exif)
    xml = voc(copied) / "Annotations/000002.xml"
    with pytest.raises(ValueError, match="states 96x96 pixels, but 000002.jpg has 96x64"):
        read(voc_config, copied)
    edit(xml, "<height>96", "<height>64")
    (record,) = (r for r in read(voc_config, copied).train if r.path == path)
    assert (record.width, record.height) == record.picture().size == (96, 64)
    assert np.array_equal(
        np.asarray(record.picture()), np.asarray(ImageOps.exif_transpose(Picture.open(path)))
    )


@pytest.mark.parametrize("list_name", ["trainval", "test"])
def test_damaged_pictures_are_named_before_training(list_name, copied, voc_config) -> None:
    name = (voc(copied) / f"ImageSets/Main/{list_name}.txt").read_text().split()[1]
    path = voc(copied) / f"JPEGImages/{name}.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ValueError, match=f"{name}.jpg: cannot be read .*truncated"):
        read(voc_config, copied)


@pytest.mark.parametrize(("dtype", "bands", "reason"), [("u2", (), "16-bit gray"), ("u1", (4,), "opacity")])
def test_pictures_that_would_lose_bits_or_bands_are_refused(dtype, bands, reason, copied, voc_config) -> None:
    path = voc(copied) / "JPEGImages/000002.jpg"
    Picture.fromarray(np.resize(np.arange(1, 254), (96, 96, *bands)).astype(dtype)).save(path, "PNG")
    with pytest.raises(ValueError, match=f"000002.jpg: cannot be read .*{reason}"):
        read(voc_config, copied)


def test_names_with_spaces_and_marks_are_read(copied, voc_config) -> None:
    folder = voc(copied)
    before = read(voc_config, copied).train
    for part, suffix in (("JPEGImages", "jpg"), ("Annotations", "xml")):
        (folder / part / f"000002.{suffix}").rename(folder / part / f"photo 1 (copy) 1.{suffix}")
    xml = folder / "Annotations/photo 1 (copy) 1.xml"
    names = (folder / "ImageSets/Main/trainval.txt").read_text().split()
    lines = [("photo 1 (copy) 1" if name == "000002" else name) + "  " for name in names]
    (folder / "ImageSets/Main/trainval.txt").write_text("\ufeff" + "\r\n".join(lines) + "\r\n\r\n")
    after = read(voc_config, copied).train
    assert [r.boxes.tolist() for r in after] == [r.boxes.tolist() for r in before]
    xml.write_bytes(b'<?xml version="1.0" encoding="klingon"?><annotation/>')
    with pytest.raises(ValueError, match=r"photo 1 \(copy\) 1.xml: not valid XML .*save it as UTF-8"):
        read(voc_config, copied)


def test_a_test_split_without_objects_is_refused(copied, voc_config, coco_config) -> None:
    for name in (voc(copied) / "ImageSets/Main/test.txt").read_text().split():
        path = voc(copied) / f"Annotations/{name}.xml"
        path.write_text(path.read_text().partition("<object>")[0] + "</annotation>")
    with pytest.raises(ValueError, match="0 test images with objects in 2007/test"):
        read(voc_config, copied)
    edit_annotations(copied, lambda content: content.update(annotations=[]), "val2017")
    with pytest.raises(ValueError, match="0 test images with objects in val2017"):
        read(coco_config, copied)


def test_sizes_written_as_floats_are_numbers(copied, coco_config) -> None:
    edit_annotations(copied, lambda content: [image.update(width=96.0) for image in content["images"]])
    assert read(coco_config, copied).train


@pytest.mark.parametrize(
    "mask",
    [
        *(
            None,
            [],
            3,
            [1, 2, 3, 4, 5, 6],
            [[1, 2, 3, 4]],
            {"size": [96, 96]},
            {"size": [9, 9], "counts": "1"},
        ),
        {"size": [96, 96], "counts": [5, 10]},
        {"size": [96, 96], "counts": [-5, 96 * 96 + 5]},
        {"size": [96, 96], "counts": [96 * 96, 1]},
        {"size": [96, 96], "counts": ""},
        {"size": [96, 96], "counts": FULL[:-1]},
        {"size": [96, 96], "counts": "zzzzzz~~~"},
        {"size": [96, 96], "counts": "".join(chr(ord(c) + 256) for c in FULL)},
        {"size": [96, 96], "counts": "P" * 20 + "0" + FULL},
        [[1, 1, 1e9, 1, 1e9, 1e9]],
        [[-1e7, 0, 5, 5, 5, 0]],
        [[1, 1, 10**400, 1, 9, 9]],
        [[100, 100, 120, 100, 120, 120]],
    ],
)
def test_masks_that_pycocotools_would_misread_are_not_used(mask, copied, coco_config) -> None:
    """Runs that do not fill the image give undefined memory, and far polygons take all of it."""
    assert coco_config.masks
    edit_annotations(copied, lambda content: content["annotations"][0].update(segmentation=mask))
    notes = read(coco_config, copied).findings.notes
    assert len(notes["objects without a mask, dropped"]) == 1
    edit_annotations(copied, lambda content: content["annotations"][0].update(segmentation=mask), "val2017")
    with pytest.raises(ValueError, match=r"\(1\): the mask of a test object must be .* of 96x96 pixels"):
        read(coco_config, copied)


def test_compressed_runs_are_decoded_as_pycocotools_does() -> None:
    rng = np.random.default_rng(0)
    for share in (0.01, 0.5, 0.99):
        mask = np.asfortranarray(rng.random((30, 47)) < share, np.uint8)
        flat, ends = mask.ravel(order="F"), np.flatnonzero(np.diff(mask.ravel(order="F"))) + 1
        runs = np.diff([0, *ends, flat.size]).tolist()
        assert _runs(rle.encode(mask)["counts"].decode()) == ([0] * bool(flat[0])) + runs


def test_overlaps_are_as_exact_as_the_thresholds() -> None:
    """13 of 20 pixels are 0.65, which counts for the threshold 0.65."""
    object_, found = (np.array([box], np.float32) for box in ([0, 0, 20, 1], [0, 0, 13, 1]))
    assert iou(found, object_)[0, 0] >= 0.65


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        ("annotations", {"area": -1}, "annotation 1 has area -1, expected the object's pixels"),
        ("annotations", {"area": 1e12}, "annotation 1 has area 1000000000000.0"),
        ("annotations", {"area": None}, "annotation 1 has area None"),
        ("annotations", {"bbox": [1, 2, 3, 10**400]}, "annotation 1 has bbox .* expected four numbers"),
        ("annotations", {"iscrowd": "0"}, "annotation 1 has iscrowd '0', expected 0 or 1"),
        ("categories", {"id": "1"}, "not a COCO instances file .TypeError"),
        ("categories", {"name": 5}, "a category has the name 5, expected text"),
        ("images", {"id": "1"}, "not a COCO instances file .TypeError"),
        ("images", {"width": 10**400}, "states 1000.*, but 0000.*.jpg has 96x96"),
    ],
)
def test_what_evaluators_would_misread_or_fail_on_is_refused(part, change, expected, copied, coco_config):
    edit_annotations(copied, lambda content: content[part][0].update(change), "val2017")
    with pytest.raises(ValueError, match=f"instances_val2017.json.*{expected}"):
        read(coco_config, copied)


def test_training_needs_neither_areas_nor_crowds(copied, coco_config) -> None:
    before = read(coco_config, copied).digest()
    bare = lambda content: [(a.pop("area"), a.pop("iscrowd"), a.pop("id")) for a in content["annotations"]]  # noqa: E731
    edit_annotations(copied, bare)
    edit_annotations(copied, lambda c: [a.pop("iscrowd") for a in c["annotations"]], "val2017")
    assert read(coco_config, copied).digest() == before


def test_evaluators_get_sizes_as_numbers_and_no_crowd_as_zero(copied, coco_config) -> None:
    """pycocotools fails on sizes that are text, and on annotations without `iscrowd`, after the training."""
    square = [[1, 1, 50, 1, 50, 50, 1, 50]]
    edit_annotations(copied, lambda c: c["annotations"][0].update(segmentation=square), "val2017")
    data = read(coco_config, copied)
    found = [Detections(r.boxes, np.ones(len(r.boxes)), r.labels, encode_masks(r.masks())) for r in data.test]
    before, _ = evaluate(found, data, coco_config)

    def change(content: dict) -> None:
        for image in content["images"]:
            image.update(width="96", height=96.0)
        for annotation in content["annotations"]:
            del annotation["iscrowd"]

    edit_annotations(copied, change, "val2017")
    assert evaluate(found, read(coco_config, copied), coco_config)[0] == before


def test_names_listed_twice_and_files_that_cannot_be_opened_are_named(copied, voc_config) -> None:
    listed = voc(copied) / "ImageSets/Main/test.txt"
    first = listed.read_text().split()[0]
    xml = voc(copied) / f"Annotations/{first}.xml"
    listed.write_text(listed.read_text() + f"{first}\n{'a' * 400}\n")
    xml.unlink()
    xml.mkdir()
    with pytest.raises(ValueError, match=f"names '{first}' 2 times, .*Is a directory.*aaa.xml: cannot be"):
        read(voc_config, copied)
