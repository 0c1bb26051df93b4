"""Labels of images in a table: as written, found by name or by place; one or several, groups and mistakes."""

import re
from pathlib import Path

import numpy as np
import pytest

from cl.commands import classify_command
from cl.commands.inputs.labels import (
    Labels,
    Targets,
    check_classes,
    classes,
    labels_in,
    opened_table,
    read_targets,
)
from cl.images.table import alike, on_disk, similar
from cl.runtime.tables import write_csv

NAMES = ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/é.jpg"]


def table(folder: Path, text: str) -> Path:
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    return folder / "labels.csv"


def test_labels_are_text_and_belong_to_names_or_places(tmp_path) -> None:
    labels = Labels(table(tmp_path, "Image,Class,patient\n1.jpg,007,a\nb/./2.jpg,1e3,\n3.jpg,nan,\n"))
    assert labels.unused() == ["1.jpg", "b/2.jpg", "3.jpg"]
    found = labels.of(["1.jpg", "b/2.jpg", "3.jpg"], tmp_path)
    assert found == [(["007"], "a"), (["1e3"], ""), ([], "")]
    assert labels.of(["2.jpg"], tmp_path / "b") == [(["1e3"], "")]
    assert labels.of(["1.jpg"], tmp_path / "elsewhere") == [(["007"], "a")], "a name of `cl embed`"
    assert not labels.unused()


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (
            "Image Index,Finding Labels\n1.jpg,Mass|Nodule\n2.jpg,Mass\n",
            ["--column", "path=Image Index", "--column", "label=Finding Labels", "--separator", "|"],
            [["Mass", "Nodule"], ["Mass"]],
        ),
        (
            "image_id,dx,lesion_id\n1,nv,a\n2,mel,b\n",
            ["--column", "path=image_id", "--column", "label=dx"],
            [["nv"], ["mel"]],
        ),
        ("image,MEL,NV\n1,1.0,0.0\n2,1,True\n", ["--column", "label=MEL,NV"], [["MEL"], ["MEL", "NV"]]),
        (
            "image,tags\n1,clear road\n2,road\n",
            ["--column", "label=tags", "--separator", " "],
            [["clear", "road"], ["road"]],
        ),
        ("""path,label\n1.jpg,"['a', 'b c']"\n2.jpg,[c]\n""", [], [["a", "b c"], ["c"]]),
        ("""path,label\n1.jpg,['a' 'b c']\n2.jpg,"[1, 2]"\n""", [], [["a", "b c"], ["1", "2"]]),
    ],
)
def test_public_tables_are_read_when_their_columns_are_named(text, options, expected, tmp_path) -> None:
    given = classify_command.make_context("classify", options).params
    labels = Labels(table(tmp_path, text), given["columns"], given["separator"])
    assert [own for own, _ in labels.of(["1.jpg", "2.jpg"], tmp_path / "photos")] == expected
    with pytest.raises(ValueError, match=r"columns image_id, dx, .* name .* --column path="):
        Labels(table(tmp_path, "image_id,dx,age\n1,nv,3\n"), {"label": "dx"})
    with pytest.raises(ValueError, match="a column name is not read"):
        Labels(labels.file, {"name": "dx"})
    with pytest.raises(ValueError, match="--separator describe .* give it"):
        opened_table(None, {"path": "a"}, None)


@pytest.mark.parametrize("separator", ["|", " ", ", ", ";"])
def test_labels_that_look_joined_or_doubled_are_remarked_on(separator) -> None:
    joined = [separator.join(parts) for parts in (["a"], ["a", "b"], ["a", "c", "b"], ["c", "a"])]
    (remark,) = similar([*joined, "golden retriever"])
    assert f"'a{separator}b' and 2 other labels" in remark
    (remark,) = similar(["[a,b]", "a", "b"])
    assert "'[a,b]' and 0 other labels seem to be several" in remark, "of columns of 0 and 1"
    assert [text.split(":")[0] for text in similar(["0", "0.0", "cat", "Cat", "b", "b\u200b"])] == [
        f"'{one}' and '{other}' look alike"
        for one, other in (("0", "0.0"), ("cat", "Cat"), ("b", "b\\u200b"))
    ]


def test_names_like_formulas_stay_as_they_are(tmp_path) -> None:
    write_csv(tmp_path / "labels.csv", ["path", "label"], [("@1.jpg", "+"), ("'@1.jpg", "'-")])
    found = Labels(tmp_path / "labels.csv").of(["@1.jpg", "'@1.jpg"], tmp_path)
    assert found == [(["+"], ""), (["'-"], "")]


def test_a_table_with_two_groups_or_labels_for_an_image_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="two rows with different groups for 1.jpg; correct one"):
        Labels(table(tmp_path, "path,label,group\n1.jpg,a,x\n./1.jpg,a,y\n"))
    for rows in ("1.jpg,a\n./1.jpg,b\n", "1.jpg,a;b\n1.jpg,a\n"):
        given = table(tmp_path, f"path,label\n{rows}")
        with pytest.raises(ValueError, match="gives 1.jpg the labels a, b; expected one"):
            classes(given, ["1.jpg"], labels_in(given, print))


def test_without_labels_the_folder_is_the_class(tmp_path) -> None:
    names = ["wren/2024/1.jpg", "2.jpg"]
    assert classes(tmp_path, names, None) == [("wren", ""), ("", "")]
    (tmp_path / "list.txt").touch()
    assert classes(tmp_path / "list.txt", names, None) == [("2024", ""), ("", "")]


def test_names_of_classes_agree_however_accents_are_encoded(tmp_path) -> None:
    for given in (tmp_path, table(tmp_path, "path,label,group\nvo\u0308gel/1.jpg,vo\u0308gel,e\u0301\n")):
        assert classes(given, ["vo\u0308gel/1.jpg"], labels_in(given, print))[0] in (
            ("vögel", ""),
            ("vögel", "é"),
        )


def targets(folder: Path, text: str) -> Targets:
    return read_targets(Labels(table(folder, text)), NAMES, folder / "images")


def test_cells_and_rows_give_labels_and_empty_cells_none(tmp_path) -> None:
    found = targets(
        tmp_path, "File name,category\na/1.jpg,wren\na/1.jpg,robin\nb/1.jpg, wren ; \na/2.jpg,NA\n"
    )
    assert found.classes == ["robin", "wren"]
    np.testing.assert_array_equal(found.targets, [[1, 1], [0, 0], [0, 1], [0, 0]])
    assert found.multilabel
    assert found.groups is not None
    assert found.groups.tolist() == [0, -1, 1, -1]


def test_tables_of_excel(tmp_path) -> None:
    """In much of Europe it separates columns by semicolons, and plain CSV is not UTF-8."""
    for delimiter in ";\t":
        text = 'path,label\r\na/1.jpg,"x;y"\r\nb/é.jpg,y\r\n'.replace(",", delimiter)
        assert targets(tmp_path, f"\ufeff{text}").targets.tolist() == [[1, 1], [0, 0], [0, 0], [0, 1]]
        told = f"sep={delimiter}\r\n{text}"
        assert targets(tmp_path, f"\ufeff{told}").targets.tolist() == targets(tmp_path, told).targets.tolist()
        assert targets(tmp_path, told).classes == ["x", "y"]
    text = 'path,"sex; age; weight","label"\na/1.jpg,m;1;2,x\nb/é.jpg,f;2;3,y\n'
    assert targets(tmp_path, text).classes == ["x", "y"]
    (tmp_path / "labels.csv").write_text(text, encoding="cp1252")
    with pytest.raises(ValueError, match="labels.csv is not UTF-8 text; save it again as CSV UTF-8"):
        read_targets(Labels(tmp_path / "labels.csv"), NAMES, tmp_path / "images")


def test_groups_and_labels_of_some_images(tmp_path) -> None:
    found = targets(tmp_path, "path,label,patient\na/1.jpg,x,p2\nb/1.jpg,y,\na/2.jpg,,p1\n")
    known = found.labelled()
    assert (known.targets.tolist(), known.classes) == ([[True, False], [False, True]], ["x", "y"])
    assert known.names == ["a/1.jpg", "b/1.jpg"]
    assert known.groups is not None
    assert known.groups.tolist() == [0, 1]
    assert "2 groups" in found.remarks[0]
    part = found.of(["b/1.jpg", "a/2.jpg"])
    assert part.targets.tolist() == [[False, True], [False, False]]
    assert not part.multilabel


def test_images_of_a_group_and_equal_files_are_held_out_together(tmp_path) -> None:
    for name, content in zip(NAMES, "xyxz", strict=True):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_text(content)
    rows = "path,label,group\na/1.jpg,s,\na/2.jpg,s,g\nb/1.jpg,t,g\nb/é.jpg,t,\n"
    found = targets(tmp_path, rows)
    assert found.groups is not None
    assert found.groups.tolist() == [0, 0, 0, 1]
    assert found.remarks[-1] == "held out together with an equal file: 1 image"
    (tmp_path / "images/a/1.jpg").unlink()
    assert re.search("not read.* 1 image$", targets(tmp_path, rows).remarks[-1])


@pytest.mark.parametrize(
    "path", ["b/e\u0301.jpg", "images/b/é.jpg", "./b/é.jpg"], ids=["decomposed", "from the table", "dot"]
)
def test_paths_start_from_the_images_or_from_the_table(path, tmp_path) -> None:
    assert targets(tmp_path, f"path,label\n{path},x\n").targets[:, 0].tolist() == [False, False, False, True]


def test_a_row_has_one_image(tmp_path) -> None:
    """The name of two images, given or beside the table, is refused; paths from the table decide."""
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jpg").touch()
    labels = Labels(table(tmp_path, "path,label\n1.jpg,x\n"))
    for same in ("train", "test/../train"):
        assert labels.of(["1.jpg"], tmp_path / same) == [(["x"], "")]
    with pytest.raises(ValueError, match=r"1\.jpg is the name of .*train.* and of .*test"):
        labels.of(["1.jpg"], tmp_path / "test")
    (tmp_path / "1.jpg").touch()
    with pytest.raises(ValueError, match=r"1\.jpg is the name of .* and of .*test"):
        Labels(labels.file).of(["1.jpg"], tmp_path / "test")
    assert Labels(labels.file).of(["1.jpg"], tmp_path / "moved") == [(["x"], "")]
    resized = tmp_path.with_name(f"{tmp_path.name}-32px")
    resized.mkdir()
    (resized / "1.jpg").touch()
    assert Labels(labels.file).of(["1.jpg"], resized) == [(["x"], "")]
    both = Labels(table(tmp_path, "path,label\n1.jpg,x\ntest/1.jpg,y\n"))
    assert both.of(["1.jpg"], tmp_path / "test") == [(["y"], "")]
    assert both.of(["1.jpg"], tmp_path) == [(["x"], "")]


def test_a_name_without_suffix_is_that_of_one_file(tmp_path) -> None:
    for name in ("1.jpg", "2.jpg", "2.png"):
        (tmp_path / name).touch()
    labels = Labels(table(tmp_path, "path,label\n1,x\n2,y\n"))
    assert labels.of(["1.jpg"], tmp_path) == labels.of(["1.jpg"], tmp_path) == [(["x"], "")]
    both = {".jpg", ".png"}
    for ask in (lambda: labels.of(["2.jpg", "2.png"], tmp_path), lambda: on_disk(tmp_path, "2", both)):
        with pytest.raises(ValueError, match="2.jpg or 2.png; write the suffix"):
            ask()


def test_all_rows_of_an_image_say_what_a_column_says(tmp_path) -> None:
    text = "path,label,site\n0.jpg,x,\n1.jpg,x,\n1.jpg,x,North\n2.jpg,x,north\n"
    labels = Labels(table(tmp_path, text), others={"--across": "site"})
    assert labels.cells("--across", ["1.jpg"], [tmp_path / "1.jpg"]) == ["North"]
    assert "'North' and 'north' look alike: they are two values of --across" in labels.remarks()
    with pytest.raises(ValueError, match="two rows with different --across for 1.jpg"):
        Labels(table(tmp_path, f"{text}1.jpg,x,South\n"), others={"--across": "site"})


@pytest.mark.parametrize("cell", ["2", "yes", "0.9"])
def test_columns_of_classes_have_zeros_and_ones(cell, tmp_path) -> None:
    with pytest.raises(ValueError, match=f"'{cell}' in the column dog, expected 0 or 1"):
        Labels(table(tmp_path, f"path,cat,dog\n1.jpg,1,\n2.jpg,0,{cell}\n"), {"label": "cat,dog"})


def test_rows_of_zeros_are_counted(tmp_path) -> None:
    rows = "1.jpg,1,\n2.jpg,0,0\n3.jpg,0,\n4.jpg,0,1\n"
    labels = Labels(table(tmp_path, f"path,cat,dog\n{rows}"), {"label": "cat,dog"})
    assert "zeros, which count as not labelled (add a column?): 1" in labels.remarks()[0]


def test_measurements_are_no_classes() -> None:
    ages = [f"{age}.5" for age in range(20, 32)]
    assert alike(ages, "classes") == [
        "each of 12 numbers, such as 20.5, is one of the classes; if they are measurements, write ranges"
    ]
    assert alike([f"{number}.0" for number in range(100)], "classes") == []


def test_a_list_without_quotes_may_have_apostrophes(tmp_path) -> None:
    text = 'path,label\n1.jpg,"[O\'Neill, D\'Arcy]"\n2.jpg,"[""D\'Arcy""]"\n'
    found = Labels(table(tmp_path, text)).of(["1.jpg", "2.jpg"], tmp_path)
    assert [own for own, _ in found] == [["O'Neill", "D'Arcy"], ["D'Arcy"]]


def test_folders_of_splits_are_no_classes(tmp_path) -> None:
    for name in ("Training", "unlabeled"):
        (tmp_path / name).mkdir()
    check_classes(tmp_path, "")
    (tmp_path / "valid").mkdir()
    with pytest.raises(ValueError, match="has the folders Training and valid, which are splits"):
        check_classes(tmp_path, "")


def test_mistakes(tmp_path) -> None:
    others = "".join(f"{n}.jpg,x\n" for n in range(5))
    assert (
        "left out 5 rows, such as 0.jpg: no such"
        in targets(tmp_path, f"path,label\na/1.jpg,x\n{others}").remarks[0]
    )
    with pytest.raises(
        ValueError, match=r"none of the 4 images in .*; its paths, such as 0\.jpg, must start"
    ):
        targets(tmp_path, f"path,label\n{others}")
    with pytest.raises(ValueError, match=r"a\\1.jpg has backslashes; write a/1.jpg"):
        targets(tmp_path, "path,label\na\\1.jpg,x\n")
    with pytest.raises(ValueError, match="labels.csv: columns .*; ignored: .*; name .*--column label="):
        targets(tmp_path, "path,species\na/1.jpg,x\n")
    with pytest.raises(ValueError, match="a label in .*labels.csv; fill in its column label"):
        targets(tmp_path, "path,label\na/1.jpg,\n")
    with pytest.raises(ValueError, match=r"none\.csv does not exist"):
        read_targets(Labels(tmp_path / "none.csv"), NAMES, tmp_path)
    (tmp_path / "labels.xlsx").touch()
    with pytest.raises(ValueError, match=r"labels\.xlsx is not a \.csv.*saved as CSV"):
        read_targets(Labels(tmp_path / "labels.xlsx"), NAMES, tmp_path)
    many = [f"{number}{end}" for number in range(9) for end in ("", ".0")]
    assert alike(many, "groups")[3:] == ["and 6 more groups"]
    remarks = targets(tmp_path, "path,label,group\na/1.jpg,x,1\na/2.jpg,X,1.0\n").remarks
    for what in (
        "'X' and 'x' look alike: they are two classes",
        "'1' and '1.0' look alike: they are two groups",
    ):
        assert what in remarks
