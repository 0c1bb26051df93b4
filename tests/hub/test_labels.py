"""Labels of images in a table: as written, found by name or by place."""

from pathlib import Path

import pytest

from cl.hub.labels import Labels, classes


def table(folder: Path, text: str) -> Path:
    (folder / "labels.csv").write_text(text)
    return folder / "labels.csv"


def test_labels_are_text_and_belong_to_names_or_places(tmp_path) -> None:
    labels = Labels(table(tmp_path, "Image,Class,patient\n1.jpg,007,a\nb/./2.jpg,1e3,\n3.jpg,nan,\n"))
    assert labels.unused() == ["1.jpg", "b/2.jpg", "3.jpg"]
    found = labels.of(["1.jpg", "b/2.jpg", "3.jpg"], tmp_path)
    assert found == [(["007"], "a"), (["1e3"], ""), ([], "")]
    assert labels.of(["2.jpg"], tmp_path / "b") == [(["1e3"], "")]
    assert labels.of(["1.jpg"], tmp_path / "elsewhere") == [(["007"], "a")], "a name of `cl embed`"
    assert not labels.unused()


def test_a_table_with_two_groups_or_labels_for_an_image_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="two rows with different groups for 1.jpg; correct one"):
        Labels(table(tmp_path, "path,label,group\n1.jpg,a,x\n./1.jpg,a,y\n"))
    for rows in ("1.jpg,a\n./1.jpg,b\n", "1.jpg,a;b\n1.jpg,a\n"):
        with pytest.raises(ValueError, match="gives 1.jpg the labels a, b; expected one"):
            classes(table(tmp_path, f"path,label\n{rows}"), ["1.jpg"])


def test_without_labels_the_folder_is_the_class(tmp_path) -> None:
    names = ["wren/2024/1.jpg", "2.jpg"]
    assert classes(tmp_path, names) == [("wren", ""), None]
    (tmp_path / "list.txt").touch()
    assert classes(tmp_path / "list.txt", names) == [("2024", ""), None]
