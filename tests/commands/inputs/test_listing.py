"""Images of files, folders, lists and tables; their names in a file, read back a range at a time."""

import os
import tempfile
from collections import Counter
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cl.commands.inputs.labels import classes
from cl.commands.inputs.listing import ImageNames, images_in, root_of
from cl.commands.paths import existing
from cl.images import folders
from cl.images.band_files import SUFFIXES as BAND_SUFFIXES
from cl.images.folders import images_below
from tests.support.pictures import picture_file
from tests.support.processes import start_fork


@pytest.fixture
def tree(tmp_path):  # type: ignore[no-untyped-def]
    """Folders and files whose names sort differently as paths and as text."""
    for name in (
        "b/1.jpg",
        "b/10.jpg",
        "b/2.png",
        "b.jpg",
        "b c/x.jpg",
        "b!/é 'q'.JPG",
        "a/z/y/x.tif",
        "a.a/1.bmp",
    ):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(name.encode())
    (tmp_path / "images/nowhere.jpg").symlink_to("nothing")
    (tmp_path / "images/notes.txt").touch()
    (tmp_path / "images/.hidden").mkdir()
    return tmp_path / "images"


@pytest.mark.parametrize("run", [1, 2, 3, 100])
def test_names_are_sorted_however_many_fit_into_memory(tree, tmp_path, monkeypatch, run) -> None:
    monkeypatch.setattr(folders, "RUN", run)
    found = ImageNames([tree], tmp_path / "work")
    _, left_out = found.write()
    others = Counter[str]()
    names = [name for name, _ in images_below(tree, "", others)]
    assert names == sorted(names, key=lambda name: name.split("/"))
    assert len(found) == len(names) == 9
    assert left_out == others
    for start in range(9):
        for stop in range(start, 10):
            assert found.names(start, stop) == names[start:stop]
    assert sorted(path.name for path in found.folder.iterdir()) == ["names.txt", "offsets"]


def test_the_hash_changes_with_the_images_and_not_with_their_place(tree, tmp_path, monkeypatch) -> None:
    found = ImageNames([tree], tmp_path / "work")
    first, _ = found.write()
    monkeypatch.chdir(tree)
    assert ImageNames([tree.relative_to(tree)], tmp_path / "other").write()[0] == first
    assert ImageNames([tree], tmp_path / "other").names(0, 9) == found.names(0, 9)
    os.utime(tree / "b.jpg", ns=(0, 0))
    second, _ = found.write()
    (tree / "b.jpg").rename(tree / "c.jpg")
    third, _ = found.write()
    assert len({first, second, third}) == 3


def names_of(*inputs: Path) -> list[str]:
    return [name for name, _ in images_in(existing(inputs), Counter())]


def test_files_folders_lists_and_tables_name_the_same_images(tree, monkeypatch) -> None:
    """One of them names images from its folder, several from the current folder; each image counts once."""
    monkeypatch.chdir(tree.parent)
    lines = ["b.jpg", "b/1.jpg", str(tree / "b/2.png"), "b/missing.jpg"]
    (tree / "list.txt").write_text("\n\n".join([*lines, "notes.docx"]))
    rows = [f"{path},{label}\n" for path in lines for label in "ab"]
    (tree / "table.csv").write_text("Image Name,label\n" + "".join(rows) + ",\n")
    pq.write_table(pa.table({"filename": lines, "features": [1, 2, 3, 4]}), tree / "table.parquet")
    for index in map(Path, ("images/list.txt", "images/table.csv", "images/table.parquet")):
        assert names_of(index) == lines
        assert root_of([index]) == Path("images")
    left_out = Counter[str]()
    inputs = [Path(name) for name in ("images/list.txt", "images/b", "images/b.jpg", "images/notes.txt")]
    listed = list(images_in(inputs, left_out))
    found = dict(listed)
    several = ["images/b.jpg", "images/b/1.jpg", str(tree / "b/2.png"), "images/b/missing.jpg"]
    assert [name for name, _ in listed] == [*several, "images/b/10.jpg", "images/b/2.png"]
    assert found["images/b/missing.jpg"] == "missing"
    assert left_out == {"with suffix .docx": 1, "already named": 2}
    assert root_of(inputs) == Path()


def test_names_agree_however_accents_are_encoded(tmp_path) -> None:
    picture_file(tmp_path / normalize("NFD", "é/Vögel.jpg"))
    (tmp_path / "list.txt").write_text(normalize("NFC", "é/Vögel.jpg"))
    (tmp_path / "table.csv").write_text(normalize("NFC", "path\né/Vögel.jpg\n"))
    for index in ("list.txt", "table.csv"):
        assert names_of(tmp_path / index) == [normalize("NFD", "é/Vögel.jpg")]


def test_inputs_that_name_no_images_are_refused(tmp_path) -> None:
    (tmp_path / "two.csv").write_text("image,file\na,b\n")
    (tmp_path / "none.csv").write_text("species,count\na,b\n")
    (tmp_path / "word.txt").write_bytes(b"\xff\xfea\x00")
    (tmp_path / "windows.txt").write_text("a\\b.jpg\n")
    wrong = {
        "missing": "no file or folder .*missing; give images",
        "two.csv": "the columns image and file for one path; remove or rename one",
        "none.csv": "has the columns species, count; call one of them path",
        "windows.txt": r"windows.txt: .* a\\b.jpg has backslashes; write a/b.jpg",
        "word.txt": "is not UTF-8 text; write the path of an image on each line",
    }
    for name, reason in wrong.items():
        with pytest.raises(ValueError, match=reason):
            names_of(tmp_path / name)


def test_a_name_with_a_line_break_is_refused(tree, tmp_path) -> None:
    (tree / "two\nlines.jpg").touch()
    with pytest.raises(ValueError, match=r"the name '.*two\\nlines.jpg' contains a line break; rename it"):
        ImageNames([tree], tmp_path / "work").write()


def test_links_into_a_folder_without_permission_are_listed() -> None:
    """In a process that may not enter it, as root may."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "images").mkdir()
        (root / "closed").mkdir()
        picture_file(root / "closed/1.jpg", 1)
        (root / "images/1.jpg").symlink_to(root / "closed/1.jpg")
        for path, mode in ((root, 0o777), (root / "closed", 0o700 if os.geteuid() == 0 else 0)):
            path.chmod(mode)
        process = start_fork(list_unprivileged, root)
        process.join()
        (root / "closed").chmod(0o700)
        assert process.exitcode == 0


def list_unprivileged(root: Path) -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)
    listed = ImageNames([root / "images"], root / "work")
    listed.write()
    assert listed.names(0, 1) == ["1.jpg"]


def test_images_of_a_stack_and_folders_of_zarr_are_inputs(tmp_path, monkeypatch) -> None:
    """By the name of the file, in a list, by their own names, and through a link."""
    monkeypatch.chdir(tmp_path)
    np.save("s.npy", np.zeros((2, 9, 8, 3), np.uint8))
    Path("list.txt").write_text("s.npy\n")
    Path("cat/a.zarr").mkdir(parents=True)
    Path("cat/b.zarr").symlink_to("a.zarr")
    Path("pets/cat/a.zarr").mkdir(parents=True)
    suffixes = folders.SUFFIXES | BAND_SUFFIXES

    def names(*given: str) -> list[str]:
        return [name for name, _ in images_in(existing(given), Counter(), suffixes)]

    assert names("s.npy") == names("list.txt") == ["s[0].npy", "s[1].npy"]
    assert names("s[1].npy") == ["s[1].npy"]
    assert names("cat") == ["a.zarr", "b.zarr"]
    assert names("cat/a.zarr") == ["cat/a.zarr"]
    assert classes(Path("pets/cat/a.zarr"), ["pets/cat/a.zarr"], None) == [("cat", "")]
