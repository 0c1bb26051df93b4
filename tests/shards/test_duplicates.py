"""Files with equal bytes: found, listed and left out."""

import csv
from pathlib import Path

import numpy as np
import pytest

from cl.data.reader import Reader
from cl.images.image import UNLABELLED, Image, Splits
from cl.shards import duplicates
from tests.support.pictures import file_of, photograph
from tests.support.tiny import stored, write_shards

A, B, C = (file_of(photograph(40, 30 + number), "PNG") for number in range(3))
WIDE = photograph(20, 90)
TRAIN = {"a.png": A, "b.png": B, "b again.png": B, "copies/a.png": A, "broken.png": A[:50], "x.png": A[:50]}
VAL = {"c.png": C, "a in val.png": A, "c again.png": C}
COPIES = [
    ["b", "train", "b again", "train"],
    ["copies/a", "train", "a", "train"],
    ["a in val", "val", "a", "train"],
    ["c", "val", "c again", "val"],
]


def rows(folder: Path) -> list[list[str]]:
    with (folder / "shards/duplicates.csv").open(newline="") as file:
        header, *found = csv.reader(file)
    assert header == ["key", "split", "same_as", "same_as_split"]
    return found


@pytest.mark.parametrize("tile", [None, 25])
def test_copies_are_listed_with_the_first_image_of_their_content(tmp_path, tile) -> None:
    """Once for each image, also where it is cut into tiles; files that cannot be read are not compared."""
    reader = stored(tmp_path, TRAIN, VAL, tile=tile)
    assert rows(tmp_path) == COPIES
    assert reader.manifest.duplicates == {"copies": 4, "in_other_split": 1, "with_other_label": 0}


@pytest.mark.parametrize("deduplicate", [False, True])
def test_copies_with_another_label_are_counted(tmp_path, deduplicate) -> None:
    """Not those without a label."""
    for name, content in (("a", A), ("b", B), ("c", C)):
        (tmp_path / f"{name}.png").write_bytes(content)
    train = [
        Image(f"{label} {i}", tmp_path / "a.png", label) for label in (0, 1, UNLABELLED) for i in range(3)
    ]
    val = [train[0], Image("c", tmp_path / "c.png", 0)]
    train.append(Image("b", tmp_path / "b.png", 1))
    manifest = write_shards(Splits(["x", "y"], train, val), tmp_path / "shards", 2, deduplicate=deduplicate)
    copies = "left_out" if deduplicate else "copies"
    assert manifest.duplicates == {copies: 9, "in_other_split": 1, "with_other_label": 3}


def test_deduplicate_keeps_the_first_training_before_validation(tmp_path) -> None:
    reader = stored(tmp_path, TRAIN, VAL, deduplicate=True)
    assert {*reader.keys.tolist()} == {b"a", b"b again"}
    assert Reader(tmp_path / "shards", "val").keys.tolist() == [b"c again"]
    assert reader.manifest.duplicates == {"left_out": 5, "in_other_split": 1, "with_other_label": 0}
    broken = ["x", "train", "broken", "train"]  # before they are read, they count as copies
    assert rows(tmp_path) == [*COPIES[:2], broken, *COPIES[2:]]


def labelled_as(folder: Path, **labels: tuple[int, bytes]) -> list[Image]:
    """Images with these labels and contents, in this order."""
    for name, (_, content) in labels.items():
        (folder / f"{name}.png").write_bytes(content)
    return [Image(name, folder / f"{name}.png", label) for name, (label, _) in labels.items()]


def test_deduplicate_prefers_a_labelled_image(tmp_path) -> None:
    """Of the labelled ones the first, of the others too; a label in validation is not lost either."""
    train = labelled_as(
        tmp_path, a=(UNLABELLED, A), b=(0, A), c=(1, A), d=(UNLABELLED, B), e=(1, file_of(WIDE))
    )
    val = labelled_as(tmp_path, f=(UNLABELLED, A), g=(1, B), h=(0, C))
    write_shards(Splits(["x", "y"], train, val), tmp_path / "shards", 2, deduplicate=True)
    kept = {split: set(Reader(tmp_path / "shards", split).keys.tolist()) for split in ("train", "val")}
    assert kept == {"train": {b"b", b"e"}, "val": {b"g", b"h"}}
    assert [row[0] + row[2] for row in rows(tmp_path)] == ["ab", "cb", "dg", "fb"]


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        ({"a": (0, A), "b": (1, A)}, {"c": (0, C)}, "train image of class y"),
        ({"a": (-1, A)}, {"b": (0, A)}, "train image"),
        ({"a": (0, A), "b": (1, B)}, {"c": (0, A), "d": (-1, C)}, "labelled val image"),
        ({"a": (-1, A)}, {"b": (-1, A)}, "val image"),
    ],
)
def test_deduplicate_refuses_to_lose_a_class_a_split_or_its_labels(tmp_path, train, val, message) -> None:
    splits = Splits(["x", "y"], labelled_as(tmp_path, **train), labelled_as(tmp_path, **val))
    with pytest.raises(ValueError, match=f"every {message} is a copy .* dataset.deduplicate=false"):
        write_shards(splits, tmp_path / "shards", 2, deduplicate=True)


def test_copies_equal_those_of_a_dictionary() -> None:
    """Many copies of few contents, and images that were not read (zeros)."""
    rng = np.random.default_rng(0)
    digests = rng.integers(0, 30, (2000, 2)).astype(np.uint64)
    digests[rng.random(2000) < 0.1] = 0
    first: dict[tuple, int] = {}
    expected = []
    for position, content in enumerate(map(tuple, digests.tolist())):
        if content in first:
            expected.append([position, first[content]])
        elif content != (0, 0):
            first[content] = position
    assert len(expected) > 500
    assert duplicates.copies(digests).tolist() == expected
