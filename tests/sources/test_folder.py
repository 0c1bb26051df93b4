"""Class folders as people have them: hidden and foreign files, links, subfolders, names of all kinds."""

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from cl.images.folders import SUFFIXES, summary
from cl.images.image import Splits
from cl.sources import folder
from tests.support.pictures import picture_file, tree


@pytest.fixture
def root(tmp_path) -> Path:
    """Two classes with two images each in both splits."""
    return tree(tmp_path / "own", 2)


def listed(root: Path) -> Splits:
    return folder.splits(SimpleNamespace(folder=lambda raw: root, suffixes=SUFFIXES), root.parent)


def keys(found: Splits) -> list[str]:
    return [image.key for image in found.train]


PLAIN = ["cat/0", "cat/1", "dog/0", "dog/1"]


FOREIGN = {
    "hidden": "train/cat/.DS_Store train/cat/._0.jpg val/cat/.hidden.png train/cat/.cache/0.png",
    "with suffix .txt": "train/cat/notes.txt",
    "with suffix .mp4": "val/dog/movie.mp4",
    "with suffix .csv": "train/cat/deep/labels.csv",
    "with suffix .bak": "train/cat/0.png.bak",
    "without a suffix": "train/cat/README",
    "next to the class folders": "train/.git/0.png train/0.png train/notes.txt val/.DS_Store",
}


def test_files_that_are_not_images_of_a_class_are_counted(root) -> None:
    for name in " ".join(FOREIGN.values()).split():
        picture_file(root / name)
    found = listed(root)
    assert (keys(found), len(found.val), found.classes) == (PLAIN, 4, ["cat", "dog"])
    assert found.left_out == {reason: len(names.split()) for reason, names in FOREIGN.items()}


def test_images_that_differ_in_their_suffix_keep_it(root) -> None:
    for name in ("a.jpg", "a.png", "b.c.jpg"):
        picture_file(root / "train/cat" / name)
    assert keys(listed(root)) == ["cat/0", "cat/1", "cat/a_jpg", "cat/a_png", "cat/b_c", *PLAIN[2:]]


def test_images_may_be_at_any_depth_with_suffixes_in_any_case(root) -> None:
    for name in ("a.JPG", "b.JpEg", "deep/c.PNG", "deep/er/d.webp", "folder.png/e.png", "v1.2/f.tif"):
        picture_file(root / "train/cat" / name)
    found = listed(root)
    inside = ["a", "b", "deep/c", "deep/er/d", "folder_png/e", "v1_2/f"]
    assert keys(found) == ["cat/0", "cat/1", *(f"cat/{name}" for name in inside), "dog/0", "dog/1"]
    assert found.left_out.total() == 0
    assert all(image.path.is_file() for image in found.train)


def test_class_folders_and_images_may_be_links(root, tmp_path) -> None:
    shutil.move(root / "train/cat", tmp_path / "elsewhere")
    (root / "train/cat").symlink_to(tmp_path / "elsewhere")
    (root / "train/dog/2.jpg").symlink_to(tmp_path / "elsewhere/0.jpg")
    found = listed(root)
    assert (keys(found), found.left_out.total()) == ([*PLAIN, "dog/2"], 0)
    assert found.train[-1].read() == (tmp_path / "elsewhere/0.jpg").read_bytes()


def test_a_change_behind_a_link_is_noticed(root, tmp_path) -> None:
    """Each file counts once, even with a link that leads to a loop, which listing refuses."""
    shutil.move(root / "train", tmp_path / "elsewhere")
    (root / "train").symlink_to(tmp_path / "elsewhere")
    shutil.move(root / "val/cat", tmp_path / "cats")
    (root / "val/cat").symlink_to(tmp_path / "cats")
    (root / "val/dog/2.jpg").symlink_to(tmp_path / "image.jpg")
    (root / "val/dog/loop").symlink_to(root)
    seen = {summary(root)}
    for file in ("elsewhere/dog/new.jpg", "cats/new.jpg", "image.jpg"):
        picture_file(tmp_path / file)
        seen.add(summary(root))
    assert len(seen) == 4
    assert summary(root).startswith("11 files, ")


@pytest.mark.parametrize(
    ("name", "is_noticed"),
    [("a.BMP", True), ("a.dicom", True), ("a.Zarr/c/0", True), ("a.ozx", True), ("a.jpg", False)],
)
def test_a_change_that_keeps_the_size_is_noticed_where_it_is_usual(name, is_noticed, root) -> None:
    """A copied folder has other times, so those of compressed images do not count."""
    file = root / "train/cat" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"12")
    before = summary(root)
    file.write_bytes(b"21")
    os.utime(file, (1, 1))
    assert (summary(root) != before) == is_noticed


@pytest.mark.parametrize("target", ["../cat", "..", "/"])
def test_a_link_to_a_folder_below_a_class_is_refused(target, root) -> None:
    """It may lead to a loop: following it might not end, and ignoring it would lose images."""
    (root / "train/cat/more").symlink_to(target)
    with pytest.raises(ValueError, match=r"train/cat/more is a link to a folder.*; put the images"):
        listed(root)


def test_broken_links_are_listed_for_prepare_to_report(root) -> None:
    (root / "train/cat/2.png").symlink_to("nothing")
    (root / "train/cat/3.png").symlink_to("3.png")
    found = listed(root)
    assert (keys(found), found.left_out.total()) == (["cat/0", "cat/1", "cat/2", "cat/3", *PLAIN[2:]], 0)
    for image in found.train[2:4]:
        with pytest.raises(OSError):
            image.read()


def test_a_pipe_is_ignored_rather_than_waited_for(root) -> None:
    os.mkfifo(root / "train/cat/2.png")
    (root / "train/cat/3.png").symlink_to("2.png")
    found = listed(root)
    assert (keys(found), found.left_out.total()) == (PLAIN, 2)


def test_a_class_whose_files_are_all_ignored_is_refused(root) -> None:
    for path in (root / "train/cat").iterdir():
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(ValueError, match="the class folder .*train/cat contains no images .*jpeg"):
        listed(root)


def test_images_without_class_folders_are_refused(tmp_path) -> None:
    for split in ("train", "val"):
        picture_file(tmp_path / "flat" / split / "0.png")
    with pytest.raises(ValueError, match="no class folders in .*flat/train; put"):
        listed(tmp_path / "flat")


def test_kaggles_flat_validation_images_are_sorted_by_the_command_that_the_message_names(tmp_path) -> None:
    root = tmp_path / "my imagenet"
    classes = ("n01440764", "n01443537")
    for number, name in enumerate(classes):
        picture_file(root / "train" / name / f"{name}_1.JPEG")
        picture_file(root / f"val/ILSVRC2012_val_0000000{number}.JPEG")
    rows = (
        f"ILSVRC2012_val_0000000{number},{name} 1 2 30 40 {name} 5 6 7 8 \n"
        for number, name in enumerate(classes)
    )
    (root / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(rows))
    with pytest.raises(ValueError, match="val contains files, but no class folders") as refused:
        listed(root)
    subprocess.run(["sh", "-c", str(refused.value).split("`")[1]], check=True)
    assert [image.key.split("/")[0] for image in listed(root).val] == [*classes]


@pytest.mark.parametrize("name", ["cat\x1b[31m", "cat\x07", "cat\ufffe"])
def test_a_class_name_that_no_picture_can_show_is_refused(name, root) -> None:
    (root / "train" / name).mkdir()
    with pytest.raises(ValueError, match="control character .*; rename it"):
        listed(root)


@pytest.mark.parametrize(
    "name", [b"train/cat/\xff.png", b"train/cat/\xff/0.png", b"val/\xffbird/0.png", b"train/\xffbird/0.png"]
)
def test_a_name_that_is_not_utf8_is_refused(name, root) -> None:
    path = Path(os.fsdecode(os.fsencode(root) + b"/" + name))
    picture_file(path)
    with pytest.raises(ValueError, match=r"the name '.*\\udcff.*' is not valid UTF-8; rename it") as error:
        listed(root)
    assert str(error.value).isascii()
