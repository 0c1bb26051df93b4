"""ImageNet and ImageNet-100: equal from folders and from archives; missing and foreign files are refused."""

import tarfile
from types import SimpleNamespace

import pytest
from PIL import Image as Picture

from cl.sources import imagenet, imagenet100
from cl.sources._shared import imagenet as archive
from tests.support.archives import (
    CLASSES,
    add_special,
    contents,
    splits_of,
    tar_of,
    write_imagenet_archives,
    write_imagenet_folders,
)
from tests.support.tiny import write_shards


def test_imagenet_lists_every_class_folder_in_the_order_of_wnids(source, tmp_path) -> None:
    settings = source("imagenet")
    (tmp_path / "raw/imagenet/train/n01").mkdir()
    Picture.new("RGB", (9, 9)).save(tmp_path / "raw/imagenet/train/n01/1.JPEG")
    with pytest.raises(ValueError, match="imagenet/val lacks 1 of 5 classes, starting with n01"):
        splits_of(settings, tmp_path / "raw")
    (tmp_path / "raw/imagenet/train/n01").rename(tmp_path / "raw/imagenet/val/n01")
    with pytest.raises(ValueError, match="imagenet/val contains the class n01, which"):
        splits_of(settings, tmp_path / "raw")
    (tmp_path / "raw/imagenet/val/n01").rename(tmp_path / "n01")
    found = splits_of(settings, tmp_path / "raw")
    assert found.classes == CLASSES
    first = [(image.key, image.label) for image in found.val[:3]]
    assert first == [("apple/0", 0), ("apple/1", 0), ("bee/0", 1)]


def test_imagenet_is_the_same_from_archives_as_from_folders(tmp_path) -> None:
    """Byte-identical shards, for all classes and for a list of them."""
    write_imagenet_folders(tmp_path / "folders/imagenet")
    write_imagenet_archives(tmp_path / "folders/imagenet", tmp_path / "archives/imagenet")
    (tmp_path / "list.txt").write_text("n00000002\nn00000003\n")
    for settings in (
        SimpleNamespace(kind="imagenet", classes=3),
        SimpleNamespace(kind="imagenet100", list=str(tmp_path / "list.txt")),
    ):
        shards = tmp_path / settings.kind
        for name in ("folders", "archives"):
            write_shards(splits_of(settings, tmp_path / name), shards / name, 4)
        assert contents(shards / "folders") == contents(shards / "archives")


def test_missing_damaged_and_foreign_archives_are_named(tmp_path) -> None:
    write_imagenet_folders(tmp_path / "folders")
    root = tmp_path / "raw" / "imagenet"
    with pytest.raises(ValueError, match=r"no folder .*train, and no file .*ILSVRC2012_img_train.tar; put"):
        imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
    write_imagenet_archives(tmp_path / "folders", root)
    whole = (root / archive.TRAIN).read_bytes()
    (root / archive.TRAIN).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"img_train.tar is damaged or incomplete .*; download it again"):
        imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
    for bad in ("../n00000001.tar", "/n00000001.tar", "notes.txt"):
        (root / archive.TRAIN).write_bytes(tar_of({bad: b""}))
        with pytest.raises(ValueError, match="which is not in the official archive"):
            imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
    with tarfile.open(root / archive.TRAIN, "w") as tar:
        add_special(tar, "n00000001.tar", tarfile.SYMTYPE, "/etc/passwd")
    with pytest.raises(ValueError, match="which is not in the official archive"):
        imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")
    (root / archive.TRAIN).write_bytes(whole)
    (root / archive.VAL).write_bytes(tar_of({"ILSVRC2012_val_00000001.JPEG": b""}))
    message = "img_val.tar contains 1 image, expected numbers 1 to 6 to match the ground truth"
    with pytest.raises(ValueError, match=message):
        imagenet.splits(SimpleNamespace(classes=3), tmp_path / "raw")


def test_imagenet_must_have_1000_classes(ilsvrc, tmp_path) -> None:
    for root in (ilsvrc.parent, tmp_path / "as_folders"):
        if root != ilsvrc.parent:
            write_imagenet_folders(root / "imagenet")
        message = "imagenet has 3 classes, expected the 1000 of ImageNet; .* dataset=folder"
        with pytest.raises(ValueError, match=message):
            imagenet.splits(SimpleNamespace(classes=1000), root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the class list .*list.txt is empty; expected one wnid per line"),
        (b"\n \n", "the class list .*list.txt is empty"),
        (b"n00000001\nn00000002\nn00000001\n", "list.txt names n00000001 2 times; list each wnid once"),
        (b"n00000001\n\xff\xfe\n", "lacks 1 of 2 classes"),
        (b"n00000001,n00000002\n", "lacks 1 of 1 classes, starting with n00000001,n00000002"),
    ],
)
def test_a_wrong_class_list_is_refused(text, message, ilsvrc, tmp_path) -> None:
    (tmp_path / "list.txt").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        imagenet100.splits(SimpleNamespace(list=str(tmp_path / "list.txt")), ilsvrc.parent)
