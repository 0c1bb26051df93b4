"""Own images: a tree of folders without labels, and a table that lists images."""

import itertools
import json
import shutil
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image as Picture
from pyarrow import csv, parquet

from cl import config
from cl.config.rules.data import neighbours
from cl.data.order import Neighbours, Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.images.folders import status_of
from cl.images.image import UNLABELLED, Image, Splits
from cl.runtime import stores
from cl.runtime.registry import module_of
from cl.shards import writing
from cl.shards.survey import Team
from cl.sources import Source, check_labels, table, unlabelled
from tests.support.pictures import picture_file
from tests.support.project import compose
from tests.support.tiny import write_shards


@pytest.fixture
def raw(tmp_path) -> Path:
    """`own`, with 40 images in nested folders, and other files."""
    for number in range(40):
        picture_file(tmp_path / f"raw/own/{'ab'[number % 2]}/day {number % 3}/{number}.png")
    (tmp_path / "raw/own/notes.txt").touch()
    (tmp_path / "raw/own/.hidden.png").touch()
    return tmp_path / "raw"


def settings(tmp_path: Path, kind: str, *overrides: str) -> Source:
    values = compose(tmp_path, f"dataset={kind}", "dataset.name=own", *overrides)
    return config.check(values).dataset


@pytest.mark.parametrize("left_out", ["", ".png"])
def test_a_table_labels_some_images_of_a_folder(left_out, raw, tmp_path) -> None:
    """It names the labelled ones alone, in columns of any name, and may lie elsewhere."""
    labelled = {f"a/day {n % 3}/{n}.png": "even" if n % 4 else "fourth" for n in range(0, 20, 2)}
    rows = [f"{path.removesuffix(left_out)},{label}" for path, label in labelled.items()]
    (tmp_path / "labels.csv").write_text("\n".join(["filename,category", *rows]))
    chosen = ["dataset.table=../../labels.csv", "dataset.holdout=0.3"]
    chosen += ["dataset.columns.path=filename", "dataset.columns.label=category"]
    dataset = settings(tmp_path, "partly_labelled", *chosen)
    found = table.splits(dataset, raw)
    check_labels(found, dataset.labels)
    images = [*found.train, *found.val]
    named = {f"{image.key}.png": found.classes[image.label] for image in images if image.label != UNLABELLED}
    assert named == labelled
    assert len(images) == 40
    apart = unlabelled.splits(settings(tmp_path, "unlabelled", "dataset.holdout=0.3"), raw)
    assert {image.key for image in found.val} == {image.key for image in apart.val}
    with pytest.raises(ValueError, match=r"dataset.columns.label=kind, .* columns filename, category"):
        table.splits(settings(tmp_path, "partly_labelled", *chosen, "dataset.columns.label=kind"), raw)


@pytest.mark.parametrize(
    ("row", "message"),
    [("a/missing.png,x", "row 3: no image a/missing.png .* correct"), ("a/0,x", "without .*suffix.*300.jpg")],
)
def test_a_label_of_no_image_is_refused(row, message, raw, tmp_path) -> None:
    (raw / "own/labels.csv").write_text(f"path,label\na/day 0/0.png,y\n{row}\n")
    with pytest.raises(ValueError, match=message):
        table.splits(settings(tmp_path, "partly_labelled"), raw)


def test_folders_of_splits_are_mixed_without_labels_and_that_is_said(raw, tmp_path) -> None:
    config_ = settings(tmp_path, "unlabelled", "dataset.holdout=0.3")
    assert unlabelled.splits(config_, raw).remarks == []
    (raw / "own/a").rename(raw / "own/train")
    (raw / "own/b").rename(raw / "own/val")
    assert "dataset=folder keeps" in unlabelled.splits(config_, raw).remarks[0]


def test_a_label_finds_its_image_however_accents_are_encoded(raw, tmp_path) -> None:
    picture_file(raw / "own" / normalize("NFD", "Vögel.png"))
    (raw / "own/labels.csv").write_text(
        normalize("NFC", "path,label,split\na/day 0/0.png,y,train\nVögel.png,x,val")
    )
    found = table.splits(settings(tmp_path, "partly_labelled"), raw)
    labelled = [image for image in (*found.train, *found.val) if image.label != UNLABELLED]
    assert sorted(image.path.is_file() for image in labelled) == [True, True]
    assert "with suffix .txt" in found.left_out
    assert "with suffix .csv" not in found.left_out  # the table is read
    found = table.splits(settings(tmp_path, "table", "dataset.table=labels.csv"), raw)
    assert found.val[0].path.is_file()


def write_columns(raw: Path, cells: dict[str, list[object]]) -> None:
    """A table with these columns, for the 40 images."""
    columns = {"path": [f"{'ab'[n % 2]}/day {n % 3}/{n}.png" for n in range(40)], **cells}
    rows = [",".join(map(str, row)) for row in (columns, *zip(*columns.values(), strict=True))]
    write(raw, "\n".join(rows))


def test_columns_of_values_reach_the_reader(raw, tmp_path) -> None:
    """Images that a group or a value connects are no negatives; an image without a value stands alone."""
    cells = {"bird": [n // 4 if n else "" for n in range(40)], "site": [n % 2 for n in range(40)]}
    chosen = "dataset.labels=none", "dataset.positive=bird", "dataset.within=site"
    write_columns(raw, cells)
    found = listed(raw, tmp_path, *chosen)
    assert {image.positive for image in found.train}.isdisjoint(
        {image.positive for image in found.val} - {""}
    )
    assert any("own views" in remark and remark.endswith("positives: 1") for remark in found.remarks)
    write_columns(
        raw, cells | {"site": [("S1", "s1")[n % 2] for n in range(40)], "clip": ["0.0", *range(39)]}
    )
    said = listed(raw, tmp_path, *chosen[:1], *chosen[2:]).remarks
    assert "'S1' and 's1' look alike: they are two values of within" in said
    assert "'0' and '0.0' look alike: they are two groups" in said
    cells["clip"] = [n // 8 for n in range(40)]
    cells["split"] = ["val" if n // 8 == 1 else "train" for n in range(40)]
    write_columns(raw, cells)
    found = listed(raw, tmp_path, *chosen)
    write_shards(found, tmp_path / "shards", 20)
    reader = Reader(tmp_path / "shards", "train")
    numbers = [int(Path(key.decode()).name) for key in reader.keys]
    columns = *reader.values.values(), reader.never_negatives
    for n, bird, site, group in zip(numbers, *columns, strict=True):
        for m, other, place, known in zip(numbers, *columns, strict=True):
            assert (bird == other) == (n == m or (n // 4 == m // 4 and 0 not in (n, m)))
            assert (site == place) == (n % 2 == m % 2)
            assert (group == known) == (n // 8 == m // 8)


@pytest.mark.parametrize(("column", "name"), [("label", "label"), ("class", "class"), ("class", "label")])
def test_labels_as_positives_do_not_make_a_class_one_independent_image(column, name, raw, tmp_path) -> None:
    """Images of a class are never negatives, but no groups, by which results are judged."""
    write_columns(raw, {column: [n % 5 for n in range(40)]})
    write_shards(
        listed(raw, tmp_path, "dataset.labels=all", f"dataset.positive={name}"), tmp_path / "shards", 20
    )
    train, val = (Reader(tmp_path / "shards", split) for split in ("train", "val"))
    assert train.groups is val.groups is None
    batch = TrainSet(train, None, [], Plan(len(train), 8, 0)).batch(0, [], np.zeros((8, 0, 0), np.float32))
    same = batch.groups[:, None] == batch.groups
    assert torch.equal(same, batch.labels[:, None] == batch.labels)


def test_values_of_validation_images_alone_leave_the_order_random(raw, tmp_path) -> None:
    cells = {"bird": [n // 4 if n < 8 else "" for n in range(40)]}
    write_columns(raw, cells | {"split": ["val" if n < 8 else "train" for n in range(40)]})
    dataset = settings(tmp_path, "table", "dataset.labels=none", "dataset.positive=bird")
    write_shards(table.splits(dataset, raw), tmp_path / "shards", 20)
    assert neighbours(dataset, Reader(tmp_path / "shards", "train")) is None


def test_other_images_drawn_together_are_other_data(raw, tmp_path) -> None:
    """Pretraining depends on the shards, not on `dataset.per_value`, which only tables have."""
    write_columns(raw, {"bird": [n // 4 for n in range(40)]})
    written = []
    for number in (2, 3):
        chosen = "dataset.labels=none", "dataset.positive=bird", f"dataset.per_value={number}"
        dataset, folder = settings(tmp_path, "table", *chosen), tmp_path / f"shards{number}"
        writing.write(table.splits(dataset, raw), "table", dataset, folder)
        written.append((folder / "manifest.json").read_text())
    assert written[0] != written[1]


def test_a_batch_has_the_values_of_its_images(raw, tmp_path) -> None:
    """Without groups, each image is one: a queue may hold its older keys."""
    write_columns(raw, {"site": ["" if n == 7 else n % 2 for n in range(40)]})
    overrides = "dataset.labels=none", "dataset.within=site", "dataset.holdout=0.1"
    write_shards(listed(raw, tmp_path, *overrides), tmp_path / "shards", 20)
    reader = Reader(tmp_path / "shards", "train")
    plan = Plan(len(reader), 32, 0, neighbours=Neighbours(None, reader.values["within"], 2, 2))
    batch = TrainSet(reader, None, [], plan).batch(0, [], np.zeros((32, 0, 0), np.float32))
    numbers = [int(Path(reader.keys[position].decode()).name) for position in batch.positions.tolist()]
    sites = [-1 - position if n == 7 else n % 2 for n, position in zip(numbers, batch.positions, strict=True)]
    assert batch.within.tolist() == sites
    assert batch.groups.tolist() == [-1] * 32
    assert batch.positive is None


@pytest.mark.parametrize(
    ("option", "cells", "message"),
    [
        ("positive=animal", [], "dataset.positive=animal, but .* columns path, bird; choose"),
        ("positive=bird", ["x"] * 40, "all .* images have the value 'x', so none is a negative"),
        ("within=bird", ["x"] * 40, "all .* images have the value 'x', so all remain"),
        ("positive=bird", range(40), "no two of the 40 images have the same value"),
        ("within=bird", range(40), "no two of the 40 images have the same value"),
    ],
)
def test_a_column_that_changes_nothing_is_refused(option, cells, message, raw, tmp_path) -> None:
    write_columns(raw, {"bird": [*cells] or [1] * 40})
    with pytest.raises(ValueError, match=message):
        listed(raw, tmp_path, "dataset.labels=none", f"dataset.{option}")


@pytest.mark.parametrize(
    ("clips", "connected"),
    [(lambda n: n % 8, 40), (lambda n: "" if n > 31 else n % 8, 32), (lambda n: n // 8, 0)],
)
def test_groups_and_values_that_connect_most_images_are_named(clips, connected, raw, tmp_path) -> None:
    """Each bird is in every clip: all images of clips are connected, though no column has one value."""
    write_columns(raw, {"bird": [n // 8 for n in range(40)], "clip": [clips(n) for n in range(40)]})
    chosen = "dataset.labels=none", "dataset.positive=bird"
    if connected == 40:
        with pytest.raises(ValueError, match="connect 40 of 40 images.*; choose another column"):
            listed(raw, tmp_path, *chosen)
    else:
        said = " ".join(listed(raw, tmp_path, *chosen).remarks)
        assert ("connect 32 of 40 images" in said) == (connected == 32)


@pytest.mark.parametrize(("images", "held_out"), [(12, 4), (15, 5), (40, 5)])
def test_few_images_leave_some_for_validation(images, held_out, tmp_path) -> None:
    """Of all images, and of the labelled ones, whatever the hashes of their names are."""
    rows = ["path,label"]
    for number in range(images):
        picture_file(tmp_path / f"raw/own/{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]}")
    found = unlabelled.splits(settings(tmp_path, "unlabelled", "dataset.holdout=0.01"), tmp_path / "raw")
    assert len(found.val) == held_out
    (tmp_path / "raw/own/images.csv").write_text("\n".join(rows))
    found = table.splits(settings(tmp_path, "table", "dataset.holdout=0.01"), tmp_path / "raw")
    assert len(found.val) == held_out


@pytest.mark.parametrize(("labelled", "frames", "held_out"), [(30, 1, 10), (330, 1, 100), (330, 6, 102)])
def test_of_few_labelled_images_enough_are_held_out_to_judge_by(labelled, frames, held_out, tmp_path) -> None:
    """A tenth of the others; frames of a video stay together."""
    for number in range(700):
        (tmp_path / "raw/own").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"raw/own/{number}.png").touch()
    rows = [f"{number}.png,{'ab'[number % 2]},v{number // frames}" for number in range(labelled)]
    (tmp_path / "raw/own/labels.csv").write_text("\n".join(["path,label,group", *rows]))
    found = table.splits(settings(tmp_path, "partly_labelled"), tmp_path / "raw")
    assert sum(image.label != UNLABELLED for image in found.val) == held_out
    assert sum(image.label == UNLABELLED for image in found.val) == pytest.approx(70 - labelled / 10, abs=15)


def test_a_data_set_may_be_any_path(raw, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(raw / "own"), "~/raw/own"):
        dataset = settings(tmp_path, "unlabelled", f'dataset.name="{name}"')
        for parent in (Path("elsewhere"), stores.path_of("memory://elsewhere")):
            assert len(unlabelled.splits(dataset, parent).train) > 20


def names(images: list[Image], raw: Path) -> set[str]:
    return {str(image.path.relative_to(raw / "own")) for image in images}


def test_a_tree_of_images_is_listed_without_labels(raw, tmp_path) -> None:
    found = unlabelled.splits(settings(tmp_path, "unlabelled", "dataset.holdout=0.3"), raw)
    assert (found.classes, len(found.train) + len(found.val)) == ([], 40)
    assert {image.label for image in (*found.train, *found.val)} == {UNLABELLED}
    assert not {image.key for image in found.train} & {image.key for image in found.val}
    assert found.left_out == {"with suffix .txt": 1, "hidden": 1}


def test_folders_of_the_system_are_left_out(raw, tmp_path) -> None:
    """Thumbnails and deleted pictures, at any depth; they are not opened, since only root may open some."""
    for folder in (
        "@eaDir/1.png",
        "a/@eaDir/2.png",
        "#recycle",
        "$RECYCLE.BIN/S-1-5",
        "__MACOSX",
        "Lost+Found",
    ):
        for name in ("thumb.png", "other.png"):
            picture_file(raw / "own" / folder / name)
    found = unlabelled.splits(settings(tmp_path, "unlabelled", "dataset.holdout=0.3"), raw)
    assert len(found.train) + len(found.val) == 40
    assert found.left_out["of the system, such as @eaDir"] == 6


def test_an_image_keeps_its_split_when_others_are_added(raw, tmp_path) -> None:
    """Also when one of the same name but another suffix is added, which changes its key."""
    config_ = settings(tmp_path, "unlabelled", "dataset.holdout=0.3")
    before = unlabelled.splits(config_, raw)
    for number in range(40):
        picture_file(raw / f"own/{'ab'[number % 2]}/day {number % 3}/{number}.jpg")
        picture_file(raw / f"own/more/{number}.png")
    after = unlabelled.splits(config_, raw)
    for split in ("train", "val"):
        assert names(getattr(before, split), raw) < names(getattr(after, split), raw)


def test_the_share_that_is_held_out_is_the_given_one(raw, tmp_path) -> None:
    for number in range(960):
        picture_file(raw / f"own/more/{number}.png")
    found = unlabelled.splits(settings(tmp_path, "unlabelled", "dataset.holdout=0.2"), raw)
    assert 160 < len(found.val) < 240  # 200 +- 3 standard deviations


def test_an_empty_split_is_refused(tmp_path) -> None:
    picture_file(tmp_path / "raw/own/only.png")
    with pytest.raises(ValueError, match=r"holdout=0.1 of the 1 image in .*own leaves 1"):
        unlabelled.splits(settings(tmp_path, "unlabelled"), tmp_path / "raw")


def write(raw: Path, text: str, name: str = "images.csv") -> None:
    (raw / "own" / name).write_text(text)


def listed(raw: Path, tmp_path: Path, *overrides: str) -> Splits:
    return table.splits(settings(tmp_path, "table", *overrides), raw)


COMPLETE = """path,label,group,split
a/day 0/0.png,dog,first,train
b/day 1/1.png,,,val
a/day 2/2.png,cat,second,
b/day 0/3.png,dog,second,val
"""


def facts(found: Splits) -> list[tuple]:
    return [
        (split, image.path.name, image.label, image.group)
        for split in ("train", "val")
        for image in getattr(found, split)
    ]


def test_a_table_gives_labels_groups_and_splits(raw, tmp_path) -> None:
    """The third row has no split of its own: it goes where its group is, not where a hash would put it."""
    write(raw, COMPLETE)
    found = listed(raw, tmp_path, "dataset.labels=some", "dataset.holdout=0.001")
    assert found.classes == ["cat", "dog"]
    assert facts(found) == [
        ("train", "0.png", 1, "first"),
        ("val", "1.png", UNLABELLED, ""),
        ("val", "2.png", 0, "second"),
        ("val", "3.png", 1, "second"),
    ]


@pytest.mark.parametrize("missing", ["", " ", "NaN", "nan", "NA", "N/A", "None", "null", "<NA>"])
def test_a_missing_value_is_missing_and_spaces_do_not_count(missing, raw, tmp_path) -> None:
    """In CSV and Parquet: no class is called nan, and no group of images either."""
    rows = [(" a/day 0/0.png", "cat ", missing, "train "), ("b/day 1/1.png\xa0", "cat", missing, " val")]
    rows += [("a/day 2/2.png", missing, missing, missing), ("b/day 0/3.png", " dog", missing, "val")]
    columns = ("path", "label", "group", "split")
    write(raw, "\n".join(map(",".join, (columns, *rows))) + "\n")
    from_csv = listed(raw, tmp_path, "dataset.labels=some")
    assert from_csv.classes == ["cat", "dog"]
    (about,) = from_csv.remarks
    assert (f"; cells {missing!r} that count as no label: 1" in about) == bool(missing.strip())
    assert about.count("count as no") == 3 * bool(missing.strip())
    assert {image.group for image in (*from_csv.train, *from_csv.val)} == {""}
    cells = dict(zip(columns, zip(*rows, strict=True), strict=True))
    parquet.write_table(pyarrow.table(cells), raw / "own/other.parquet")
    again = listed(raw, tmp_path, "dataset.labels=some", "dataset.table=other.parquet")
    assert facts(again) == facts(from_csv)


def test_numbers_of_classes_may_be_missing_in_parquet(raw, tmp_path) -> None:
    """As pandas writes integers with gaps: floats and not-a-number."""
    numbers = [1.0, float("nan"), 12.0, None]
    paths = ["a/day 0/0.png", "b/day 1/1.png", "a/day 2/2.png", "b/day 0/3.png"]
    splits = ["train", "train", "val", "val"]
    parquet.write_table(
        pyarrow.table({"path": paths, "label": pyarrow.array(numbers, from_pandas=False), "split": splits}),
        raw / "own/images.parquet",
    )
    assert listed(raw, tmp_path, "dataset.labels=some").classes == ["1", "12"]


def test_columns_and_similar_labels_are_named(raw, tmp_path) -> None:
    """A column's own name comes before its synonyms."""
    rows = ["a/day 0/0.png,x,cat,p,val", "b/day 1/1.png,,Cat,,", "b/day 0/3.png,,dog,,train"]
    write(raw, "\n".join(["File_Path,Class Name,label,patient ID, split", *rows]))
    found = listed(raw, tmp_path)
    columns, similar = found.remarks
    assert columns.endswith(
        "columns File_Path as path, label, patient ID as group,  split as split; ignored: Class Name"
    )
    assert "'Cat' and 'cat' look alike" in similar
    assert facts(found)[-1] == ("val", "0.png", 1, "p")


def test_captions_may_have_line_breaks(raw, tmp_path) -> None:
    """In a table larger than the blocks of 1 MiB in which it is read."""
    caption = "a dog\n" * 40
    rows = [f'c/{number}.png,dog,"{caption}"\n' for number in range(5000)]
    write(raw, "path,label,caption\n" + "".join(rows))
    found = listed(raw, tmp_path)
    assert len(found.train) > 4000
    assert "'a dog a dog" in found.remarks[0]


@pytest.mark.parametrize("note", ["note", ""])
def test_a_quote_that_is_not_closed_is_shown(note, raw, tmp_path) -> None:
    """Also if another column has the same name, or none."""
    rows = [",a/day 0/0.png,val,fine", ',a/day 1/1.png,train,"6 legs', ",b/day 0/3.png,train,fine", ""]
    write(raw, "\n".join([f"{note},path,split,{note}", *rows]))
    assert (
        "'6 legs ,b/day 0/3.png,train,fine ' is one cell of several"
        in listed(raw, tmp_path, "dataset.labels=none").remarks[0]
    )


def test_a_group_is_never_split(raw, tmp_path) -> None:
    rows = [
        f"{path.relative_to(raw / 'own')},{path.name[0]}" for path in sorted((raw / "own").rglob("*/*.png"))
    ]
    write(raw, "\n".join(["path,group", *rows]))
    found = listed(raw, tmp_path, "dataset.labels=none", "dataset.holdout=0.5")
    assert len(found.train) + len(found.val) == 40
    assert not {image.group for image in found.train} & {image.group for image in found.val}


def test_files_without_an_image_suffix_are_counted(raw, tmp_path) -> None:
    write(raw, "path,split\na/day 0/0.png,train\nb/day 1/1.png,val\nnotes.txt,val\nmovie.mp4,\n")
    assert listed(raw, tmp_path, "dataset.labels=none").left_out == {
        "with suffix .txt": 1,
        "with suffix .mp4": 1,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\na.png,cat\n", "images.csv has the columns name, label; name .* dataset.columns.path="),
        ("path\n/etc/a.png\n", "row 2: /etc/a.png leads out .*; give a path below it"),
        ("path\nb.png\na/../../a.png\n", "row 3: a/../../a.png leads out"),
        ("path,label\n,cat\n", "row 2: the path is empty"),
        ("path\na.png\nb.png\na.png\n", "row 4: a.png is already in row 2; remove one"),
        ("path,split\na.png,test\n", "row 2: split=test should be train, val or empty"),
        (
            "path,group,split\na.png,g,train\nb.png,g,val\n",
            "group g is in train in row 2, .* val in row 3; a",
        ),
        ("path,label\na.png\n", "images.csv cannot be read as a table: CSV parse error"),
        ("", "images.csv cannot be read as a table: Empty CSV file"),
        ("path,split\na.png,train\n", "gives 1 training and 0 validation images, expected"),
        ("path,source\na.png,x\nb.png,x\n", "gives 2 .* 0 validation images in 1 group, expected"),
        ("path,label,label\na.png,cat,dog\n", "the columns label and label for one label; remove or rename"),
        ("path,class,Label\na.png,cat,dog\n", "the columns class and Label for one label; remove or rename"),
        ("path,kind\na.png,cat\n", "ignored: kind; name .* dataset.columns.label=.*dataset.labels=none"),
        (
            "path,label\nhttps://example.org/a.png,cat\n",
            "row 2: https://example.org/a.png is a URL; download",
        ),
        ("path\nday 1\\a.png\n", r"row 2: the path day 1\\a.png has backslashes; write day 1/a.png"),
        (
            f"path,label\n{300 * 'a'},cat\nb,dog\n",
            "gives 0 training .*; left out 2 rows without a suffix",
        ),
        ("path,label\na.png,cat\x1b[0m\n", r"row 2, label: .* control character '\\x1b'; rename it"),
        ("path,label\na.png,cat\x00\n", r"row 2, label: .* control character '\\x00'; rename it"),
        ("p\0a\0t\0h\0\n\0a\0.\0p\0n\0g\0\n\0", "UTF-16 text, expected UTF-8; save"),
        ('path,label\n"a\nb.png",cat\n', r"row 2, path: .* control character '\\n'; rename it"),
    ],
)
def test_a_wrong_table_is_refused(text, message, raw, tmp_path) -> None:
    write(raw, text)
    with pytest.raises(ValueError, match=message):
        listed(raw, tmp_path, *([] if "label" in text + message else ["dataset.labels=none"]))


@pytest.mark.parametrize("given", ["", "dataset.columns.label=kind", "dataset.table=../images.csv"])
def test_the_stage_check_already_refuses_a_table_without_a_needed_column(given, raw, tmp_path) -> None:
    """Or a table that lies elsewhere, whose place it names."""
    write(raw, "path,species\na.png,cat\n")
    chosen = settings(tmp_path, "table", *filter(None, [given]))
    if "table" in given:
        (tmp_path / "own").mkdir()
        chosen = chosen.model_copy(update={"name": str(tmp_path / "own"), "table": "raw/own/images.csv"})
    message = "folder of images: give dataset.table=/.*/raw/own/images.csv" if "table" in given else "species"
    with pytest.raises(ValueError, match=message):
        chosen.check_present(raw)


def test_public_tables_are_read_when_their_columns_are_named(raw, tmp_path) -> None:
    """Identifiers without suffix, and a column per class."""
    rows = [f"{'ab'[n % 2]}/day {n % 3}/{n},{n % 2}.0,{1 - n % 2}.0" for n in range(40)]
    write(raw, "\n".join(["image_id,odd,even", *rows]))
    found = listed(raw, tmp_path, "dataset.columns.path=image_id", 'dataset.columns.label="odd,even"')
    images = [*found.train, *found.val]
    assert len(images) == 40
    assert all(image.path.is_file() for image in images)
    assert {(found.classes[image.label], int(image.path.stem) % 2) for image in images} == {
        ("odd", 1),
        ("even", 0),
    }


@pytest.mark.parametrize(
    ("labels", "expected", "message"),
    [
        ([0, 1], "none", "labels=none, but 4 of 4 images .*; choose dataset.labels=all"),
        ([0, 1, UNLABELLED], "none", "labels=none, but 4 of 6 images .*; choose dataset.labels=some"),
        ([0, 1, UNLABELLED], "all", "labels=all, but 4 of 6 images .*; choose dataset.labels=some"),
        ([UNLABELLED] * 2, "some", "labels=some, but 0 of 4 images .*; choose dataset.labels=none"),
    ],
)
def test_labels_must_be_as_promised(labels, expected, message) -> None:
    images = [Image(str(number), Path("a.png"), label) for number, label in enumerate(labels)]
    with pytest.raises(ValueError, match=message):
        check_labels(Splits(["cat", "dog"], images, images), expected)
    classes = ["cat", "dog"] if 0 in labels else []
    check_labels(Splits(classes, images, images), message[-4:].lstrip("="))


def test_one_class_and_a_split_without_labels_are_refused() -> None:
    labelled, unlabelled = ([Image("a", Path("a.png"), label)] for label in (0, UNLABELLED))
    with pytest.raises(ValueError, match="all labels are 'all', .*; give two"):
        check_labels(Splits(["all"], labelled, labelled), "all")
    with pytest.raises(ValueError, match="no validation image has a label; label some"):
        check_labels(Splits(["cat", "dog"], labelled, unlabelled), "some")


def test_every_class_keeps_a_training_image(raw, tmp_path) -> None:
    """Unless the table holds out all its images; what the table has for training needs no other image."""
    rows = [
        f"{number}.png,{number // 2},{f'g{number // 2}' if number < 50 else ''}," for number in range(100)
    ]
    rows += ["x.png,given,,train", "y.png,given,,"]
    found = []
    for order in (rows, rows[::-1]):
        write(raw, "\n".join(["path,label,group,split", *order]))
        found.append(listed(raw, tmp_path, "dataset.holdout=0.9"))
        check_labels(found[-1], "all")
    assert "y.png" in names(found[0].val, raw)
    assert names(found[0].train, raw) == names(found[1].train, raw)
    assert len(found[0].val) > 25
    write(raw, "\n".join(["path,label,group,split", *rows, "z.png,apart,,val"]))
    with pytest.raises(ValueError, match="class apart has no training image; move one"):
        check_labels(listed(raw, tmp_path), "all")


def test_groups_come_back_from_the_shards(raw, tmp_path) -> None:
    """Equal numbers for equal groups, -1 for an image without one."""
    for number in range(4):
        picture_file(raw / f"own/c/{number}.png")
    write(raw, COMPLETE + "c/0.png,cat,first,train\nc/1.png,cat,,train\nc/2.png,dog,third,train\n")
    found = listed(raw, tmp_path, "dataset.labels=some")
    write_shards(found, tmp_path / "shards", 2)
    train = Reader(tmp_path / "shards", "train")
    by_key = dict(zip(train.keys.tolist(), train.groups.tolist(), strict=True))
    assert by_key == {b"a/day 0/0": 0, b"c/0": 0, b"c/1": -1, b"c/2": 1}
    assert train.manifest.splits["train"].groups == 2
    assert np.array_equal(np.unique(Reader(tmp_path / "shards", "val").groups), [-1, 0])


def of_bands(tmp_path: Path, kind: str, *overrides: str) -> Source:
    """A data set with the recipe for bands."""
    return settings(tmp_path, kind, "recipe=own/bands", *(f"dataset.{each}" for each in overrides))


def write_bands(raw: Path) -> dict[str, np.ndarray]:
    """A table with a column of paths for each band; the images as they should be read."""
    random, images, rows = np.random.default_rng(0), {}, ["dapi,gfp,label"]
    for number in range(6):
        pixels = random.integers(0, 2**16, (9, 8, 2)).astype(np.uint16)
        for band, name in enumerate(("dapi", "gfp")):
            path = raw / f"own/cells/{name}/{number}.tif"
            path.parent.mkdir(parents=True, exist_ok=True)
            Picture.fromarray(pixels[..., band]).save(path)
        images[f"cells/gfp/{number}"] = pixels[..., ::-1]
        rows.append(f"cells/dapi/{number}.tif,cells/gfp/{number}.tif,{'ab'[number % 2]}")
    (raw / "own/images.csv").write_text("\n".join(rows))
    return images


@pytest.mark.parametrize("name", ["images.csv", "images.parquet"])
def test_a_table_may_have_a_column_of_files_for_each_band(name, raw, tmp_path) -> None:
    """The Parquet table also has a column of another type than text."""
    images = write_bands(raw)
    if name == "images.parquet":
        content = csv.read_csv(raw / "own/images.csv")
        parquet.write_table(content.append_column("bbox", [[{"x": 1}] * len(content)]), raw / f"own/{name}")
        (raw / "own/images.csv").unlink()
    chosen = of_bands(tmp_path, "table", "channels=[gfp,dapi]", "holdout=0.3")
    found = table.splits(chosen, raw)
    writing.write(found, "table", chosen, tmp_path / "shards")
    for split in ("train", "val"):
        reader = Reader(tmp_path / "shards", split)
        assert reader.manifest.bands is not None
        assert reader.manifest.bands.names == ("gfp", "dapi")
        for position, key in enumerate(reader.keys):
            assert np.array_equal(reader.pixels(position), images.pop(key.decode()))
    assert not images


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("cells/dapi/7.tif,,a", "row 8: gfp is empty; give the file"),
        ("cells/dapi/7.tif,../0.tif,a", "row 8: ../0.tif leads out"),
    ],
)
def test_a_row_without_the_file_of_a_band_is_refused(row, message, raw, tmp_path) -> None:
    write_bands(raw)
    with (raw / "own/images.csv").open("a") as file:
        file.write("\n" + row)
    chosen = of_bands(tmp_path, "table", "channels=[dapi,gfp]")
    with pytest.raises(ValueError, match=message):
        table.splits(chosen, raw)


def test_a_misspelt_column_of_a_band_is_named(raw, tmp_path) -> None:
    """But files of all bands may have some with the names of columns."""
    write_bands(raw)
    chosen = of_bands(tmp_path, "table", "channels=[dpai,gfp]")
    with pytest.raises(ValueError, match="channels=dpai, but .* columns dapi, gfp, label; choose one"):
        chosen.check_present(raw)
    write(raw, (raw / "own/images.csv").read_text().replace("dapi", "file", 1))
    assert chosen.band_columns(raw) == []


def write_arrays(folder: Path) -> dict[str, np.ndarray]:
    """An image, two stacks of images, and an OME-Zarr folder; the images (9, 8, 3) by their names."""
    folder.mkdir(parents=True)
    images = np.random.default_rng(len(str(folder))).integers(0, 2**16, (7, 9, 8, 3)).astype(np.uint16)
    np.save(folder / "one.npy", images[0])
    np.save(folder / "stack.npy", images[1:4])
    np.save(folder / "planes.npy", np.moveaxis(images[4:6], -1, 1))
    for name in (".zgroup", "0/.zarray"):
        (folder / "a.zarr" / name).parent.mkdir(exist_ok=True)
    (folder / "a.zarr/.zgroup").write_text('{"zarr_format": 2}')
    scales = [{"axes": [{"name": axis} for axis in "yxc"], "datasets": [{"path": "0"}]}]
    (folder / "a.zarr/.zattrs").write_text(json.dumps({"multiscales": scales}))
    settings = {"zarr_format": 2, "shape": [9, 8, 3], "chunks": [9, 8, 3], "dtype": "<u2", "order": "C"}
    settings |= {"compressor": None, "filters": None, "fill_value": 0}
    (folder / "a.zarr/0/.zarray").write_text(json.dumps(settings))
    (folder / "a.zarr/0/0.0.0").write_bytes(images[6].tobytes())
    names = ["one", *(f"stack[{n}]" for n in range(3)), *(f"planes[{n}]" for n in range(2)), "a"]
    return dict(zip(names, images, strict=True))


def test_a_name_without_suffix_is_that_of_one_file_of_bands(raw, tmp_path) -> None:
    write_arrays(raw / "own/c")
    write(raw, "path,label,split\nc/one,x,train\nc/a,x,val\n")
    chosen = of_bands(tmp_path, "table")
    found = table.splits(chosen, raw)
    assert names([*found.train, *found.val], raw) == {"c/one.npy", "c/a.zarr"}
    picture_file(raw / "own/c/a.png")
    with pytest.raises(ValueError, match=r"c/a is a.png or a.zarr; write the suffix"):
        table.splits(chosen, raw)


@pytest.mark.parametrize("kind", ["folder", "unlabelled", "table"])
def test_stacks_and_folders_of_numbers_are_images_with_channels_only(kind, raw, tmp_path) -> None:
    pytest.importorskip("zarr")
    shutil.rmtree(raw / "own")
    rows, expected = ["path,label,split"], {}
    for split, name in itertools.product(("train", "val"), "ab"):
        images = write_arrays(raw / f"own/{split}/{name}")
        expected |= {f"{split}/{name}/{key}": pixels for key, pixels in images.items()}
        suffix = {"a": "zarr"}
        rows += [f"{split}/{name}/{key}.{suffix.get(key, 'npy')},{name},{split}" for key in images]
    (raw / "own/images.csv").write_text("\n".join(rows))
    chosen = of_bands(tmp_path, kind)
    found = module_of("sources", kind).splits(chosen, raw)
    for image in (*found.train, *found.val):
        assert image.status == (None if kind == "table" else status_of(image.path))
        assert status_of(image.path)[0].isdecimal()  # its size, and not that it is missing
    writing.write(found, kind, chosen, tmp_path / "shards", Team(2))
    for split in ("train", "val"):
        reader = Reader(tmp_path / "shards", split)
        for position, key in enumerate(reader.keys):
            prefix = f"{split}/" if kind == "folder" else ""
            assert np.array_equal(reader.pixels(position), expected.pop(prefix + key.decode()))
    assert not expected
    if kind == "unlabelled":
        with pytest.raises(ValueError, match="0 images"):
            unlabelled.splits(settings(tmp_path, kind), raw)


def test_a_changed_stack_or_folder_has_another_status(raw, tmp_path) -> None:
    """So that shards of a stopped run are not taken for those of the new pixels."""
    write_arrays(raw / "own/new")
    chosen = of_bands(tmp_path, "unlabelled")

    def status() -> dict[str, str | None]:
        found = unlabelled.splits(chosen, raw)
        return {image.key: image.status for image in (*found.train, *found.val)}

    before = status()
    np.save(raw / "own/new/stack.npy", np.zeros((3, 10, 8, 3)))
    (raw / "own/new/a.zarr/0/0.0.0").write_bytes(bytes(1000))
    changed = {key for key, value in status().items() if value != before[key]}
    assert changed == {"new/stack[0]", "new/stack[1]", "new/stack[2]", "new/a"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tile=64", "tile=64 does not work with channels.*choose tile=null"),
        ("shrink=64", "shrink=64 does not work with channels.*choose shrink=null"),
        ("encode=jpeg", "encode=jpeg does not work with channels.*choose encode=raw"),
        ("upright=false", "upright=false does not work with channels.*choose upright=true"),
        ("channels=[1,1]", "contains duplicates"),
        ("channels=[]", "channels"),
        ("channels=[0]", "channels"),
        ("channels=some", "channels"),
    ],
)
def test_settings_that_change_bands_are_refused(override, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        of_bands(tmp_path, "unlabelled", "channels=all", override)
