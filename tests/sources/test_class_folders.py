"""Photographs and class folders: what they must contain, and what a message says is missing."""

from pathlib import Path

import pytest
from PIL import Image as Picture

from cl.sources import Source, folder, imagenet100, photos
from cl.sources._shared import photographs
from cl.sources.folder import Config as Folder
from tests.support.project import ROOT


def test_photos_are_twenty_classes_from_disjoint_bands(params, tmp_path) -> None:
    splits = photos.splits(params.dataset, tmp_path)
    assert len(splits.classes) == 20
    assert [len(splits.train), len(splits.val)] == [20 * 6, 20 * 3]
    with Picture.open(photographs.files()["china"]) as picture:
        train, val = photographs.bands(picture).values()
        assert train.width + val.width == picture.width
        assert train.height == val.height == picture.height


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Picture.new("RGB", (20, 30)).save(path)


def write_tree(root: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            for number in range(3):
                write_image(root / split / name / f"{number}.jpg")


def test_folders_say_what_is_missing(tmp_path, params) -> None:
    common = params.dataset.model_dump(include={*Source.model_fields} - {"kind"})
    with pytest.raises(
        ValueError, match=r"no folder .*own/train. put the images at .*own/\{train,val\}/<class>/<image>"
    ):
        folder.splits(Folder(kind="folder", name="own", **common), tmp_path)
    write_tree(tmp_path / "imagenet")
    (tmp_path / "list.txt").write_text("cat\nbird\n")
    (tmp_path / "flat" / "train").mkdir(parents=True)
    (tmp_path / "flat" / "val").mkdir()
    write_image(tmp_path / "flat" / "train" / "0.jpg")
    with pytest.raises(ValueError, match="no class folders? in .*flat/train"):
        folder.splits(Folder(kind="folder", name="flat", **common), tmp_path)
    with pytest.raises(ValueError, match="lacks 1 of 2 classes, starting with bird"):
        imagenet100.splits(
            imagenet100.Config(kind="imagenet100", list=str(tmp_path / "list.txt"), **common), tmp_path
        )
    (tmp_path / "list.txt").write_text("dog\ncat\n")
    found = imagenet100.splits(
        imagenet100.Config(kind="imagenet100", list=str(tmp_path / "list.txt"), **common), tmp_path
    )
    assert found.classes == ["dog", "cat"]
    assert found.train[0].label == 0
    assert found.train[0].key == "dog/0"
    (tmp_path / "own" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "own" / "val" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="(has|contains) no image"):
        folder.splits(Folder(kind="folder", name="own", **common), tmp_path)


def test_imagenet100_is_the_list_of_100_classes() -> None:
    names = (ROOT / "data" / "imagenet100.txt").read_text().split()
    assert len(set(names)) == 100
    assert (names[0], names[-1]) == ("n02869837", "n02090622")
