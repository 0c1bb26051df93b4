"""Data in VOC's layout: every problem is named with its file."""

import pytest

from cl.detection.data import read
from tests.support.pictures import picture_file


def test_all_errors_are_named_at_once_with_their_files(copied, voc_config) -> None:
    folder = copied / "VOCdevkit" / "VOC2007"
    (folder / "JPEGImages" / "000002.jpg").unlink()
    picture_file(folder / "JPEGImages" / "000006.png", 0, (96, 96))
    (folder / "JPEGImages" / "000006.jpg").unlink()
    (folder / "JPEGImages" / "000003.jpg").write_bytes(b"no picture")
    for name, old, new in (
        ("000004", "<width>96</width>", "<width>100</width>"),
        ("000005", "<xmin>", "<xmin>a"),
    ):
        path = folder / "Annotations" / f"{name}.xml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError) as raised:
        read(voc_config, copied)
    for part in (
        "JPEGImages/000002.jpg: missing",
        "JPEGImages/000003.jpg: cannot be read",
        "Annotations/000004.xml: states 100x96 pixels, but 000004.jpg has 96x96",
        "Annotations/000005.xml: the box of ",
    ):
        assert part in str(raised.value)
    assert "000006" not in str(raised.value), "a PNG is read too"


def test_misspelt_and_missing_class_names_are_errors(copied, voc_config) -> None:
    annotations = copied / "VOCdevkit" / "VOC2007" / "Annotations"
    for number, name in ((1, "Person"), (2, " ")):
        path = annotations / f"{number:06d}.xml"
        path.write_text(f"<annotation><object><name>{name}</name></object></annotation>")
    with pytest.raises(ValueError, match="1.xml: .* 'Person', expected 'person'; .*2.xml: .* without a name"):
        read(voc_config, copied)


def test_a_list_that_is_missing_or_not_utf8_is_refused(copied, voc_config) -> None:
    path = copied / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main" / "test.txt"
    path.write_bytes("000001".encode("utf-16"))
    with pytest.raises(ValueError, match="test.txt is not valid UTF-8"):
        read(voc_config, copied)
    path.unlink()
    with pytest.raises(
        ValueError, match="test.txt not found, only trainval.txt in .*: put VOCdevkit or coco, .* CL_RAW"
    ):
        read(voc_config, copied)
