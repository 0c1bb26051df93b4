"""Raw images to shards: the same bytes every time, and what is refused."""

import json
import os

import pytest

from cl.data.reader import Reader
from cl.sources import photos
from cl.sources._shared.class_folders import class_folders
from tests.support.pictures import UNREADABLE, digest, odd_tree, picture_file, tree
from tests.support.tiny import stored, write_shards


@pytest.mark.parametrize(("encode", "shrink"), [("copy", None), ("jpeg", 25), ("raw", 25)])
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_bytes_depend_on_the_images_alone(tmp_path, encode, shrink) -> None:
    """Not on the number of workers, the path of the raw data or the age of its files."""
    found = []
    for workers in (1, 2, 3):
        root = odd_tree(tmp_path / f"{workers}" / "own")
        for path in root.rglob("*.jpg"):
            if path.is_file():
                os.utime(path, (workers, workers))
        shards = tmp_path / f"shards {workers}"
        manifest = write_shards(
            class_folders(root), shards, 7, workers=workers, encode=encode, shrink=shrink, upright=True
        )
        found.append(digest(shards))
        assert set(manifest.splits["train"].skipped) == UNREADABLE
    assert found[0] == found[1] == found[2]


def test_the_files_are_shards_index_keys_and_manifest(params, tmp_path) -> None:
    """Nothing is there, or in the manifest, that these images do not have: copies, groups, deep images."""
    write_shards(photos.splits(params.dataset, tmp_path), tmp_path / "shards", 50, workers=2)
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == [
        "manifest.json",
        *(f"train-{i:06d}.tar" for i in range(3)),
        "train.npy",
        "train_keys.npy",
        *(f"val-{i:06d}.tar" for i in range(2)),
        "val.npy",
        "val_keys.npy",
    ]
    manifest = json.loads((tmp_path / "shards/manifest.json").read_text())
    assert not {"duplicates", "levels"} & manifest.keys()
    assert not {"deduplicate", "percentiles", "tile", "store"} & manifest["storage"].keys()
    assert "groups" not in manifest["splits"]["train"]
    assert Reader(tmp_path / "shards", "train").groups is None


def test_the_order_does_not_depend_on_the_size_of_shards(tmp_path) -> None:
    splits = class_folders(tree(tmp_path / "own", 20))
    for size in (3, 7, 100):
        write_shards(splits, tmp_path / f"{size}", size)
    keys = [Reader(tmp_path / f"{size}", "train").keys.tolist() for size in (3, 7, 100)]
    assert keys[0] == keys[1] == keys[2] != sorted(keys[0])


def test_a_class_without_a_readable_image_is_refused(tmp_path) -> None:
    root = tree(tmp_path / "own")
    for file in (root / "val" / "dog").iterdir():
        file.write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"class dog has no .* in val \(dog/\d: ValueError: the file is empty"
    ):
        write_shards(class_folders(root), tmp_path / "shards", 4)
    assert not (tmp_path / "shards").exists()
    with pytest.raises(
        ValueError, match=r"of 2 images, has no .* in train \(\d: ValueError: the file is empty"
    ):
        stored(tmp_path, {"1.jpg": b"", "2.jpg": b""})


def test_equal_names_are_refused(tmp_path) -> None:
    root = tree(tmp_path / "own")
    picture_file(root / "train" / "cat" / "a.b.jpg")
    picture_file(root / "train" / "cat" / "a_b.jpg")
    with pytest.raises(ValueError, match="would both be stored as 'cat/a_b_jpg'; rename"):
        write_shards(class_folders(root), tmp_path / "shards", 4)


def test_the_end_of_a_long_name_becomes_a_hash(tmp_path) -> None:
    """Two names that differ at their end stay apart, and no character is cut in two."""
    root = tree(tmp_path / "own")
    for end in ("a.jpg", "a.png", "b.jpg"):
        picture_file(root / "train" / "cat" / ("写" * 60) / f"{'真' * 60}{end}")
    write_shards(class_folders(root), tmp_path / "shards", 4)
    keys = [key.decode() for key in Reader(tmp_path / "shards", "train").keys.tolist()]
    long = [key for key in keys if key.startswith(f"cat/{'写' * 59}_")]
    assert len(set(long)) == 3
    assert {len(key.encode()) for key in long} == {198}
