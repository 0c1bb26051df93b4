"""ImageNet and ImageNet-100: equal from folders and from archives; missing and foreign files are refused."""

from types import SimpleNamespace

import pytest
from PIL import Image as Picture

from cl.sources import imagenet, imagenet100
from tests.support.archives import CLASSES, splits_of, write_imagenet_archives, write_imagenet_folders
from tests.support.pictures import digest
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


def test_imagenet_is_the_same_from_archives_as_from_folders(tmp_path, monkeypatch) -> None:
    """Byte-identical shards, for all classes and for a list of them."""
    write_imagenet_folders(tmp_path / "folders/imagenet")
    write_imagenet_archives(tmp_path / "folders/imagenet", tmp_path / "archives/imagenet", monkeypatch)
    (tmp_path / "list.txt").write_text("n00000002\nn00000003\n")
    for settings in (
        SimpleNamespace(kind="imagenet", classes=3),
        SimpleNamespace(kind="imagenet100", list=str(tmp_path / "list.txt")),
    ):
        shards = tmp_path / settings.kind
        for name in ("folders", "archives"):
            write_shards(splits_of(settings, tmp_path / name), shards / name, 4)
        assert digest(shards / "folders") == digest(shards / "archives")


def test_imagenet_must_have_1000_classes(ilsvrc) -> None:
    with pytest.raises(ValueError, match="imagenet has 3 classes, expected the 1000 .*dataset=folder"):
        imagenet.splits(SimpleNamespace(classes=1000), ilsvrc.parent)


def test_labels_follow_the_class_list(ilsvrc, tmp_path) -> None:
    (tmp_path / "list.txt").write_text("n00000003\nn00000001\n")
    found = imagenet100.splits(SimpleNamespace(list=str(tmp_path / "list.txt")), ilsvrc.parent)
    assert found.classes == ["n00000003", "n00000001"]
    assert (found.train[0].key, found.train[0].label) == ("n00000003/n00000003_0", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\n \n", "the class list .*list.txt has 0 names"),
        (b"n00000001\nn00000002\nn00000001\n", "list.txt has 3 names, 2 .*; list each"),
        (b"n00000001\n\xff\xfe\n", "lacks 1 of 2 classes"),
        (b"n00000001,n00000002\n", "lacks 1 of 1 classes, starting with n00000001,n00000002"),
    ],
)
def test_a_wrong_class_list_is_refused(text, message, ilsvrc, tmp_path) -> None:
    (tmp_path / "list.txt").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        imagenet100.splits(SimpleNamespace(list=str(tmp_path / "list.txt")), ilsvrc.parent)
