"""Names of images in a file: sorted as paths, read back a range at a time."""

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from cl.hub.listing import Listing
from cl.sources._shared import listing
from cl.sources._shared.trees import images_below
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
    monkeypatch.setattr(listing, "RUN", run)
    found = Listing(tree, tmp_path / "work")
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
    found = Listing(tree, tmp_path / "work")
    first, _ = found.write()
    monkeypatch.chdir(tree)
    assert Listing(tree.relative_to(tree), tmp_path / "other").write()[0] == first
    assert Listing(tree, tmp_path / "other").names(0, 9) == found.names(0, 9)
    os.utime(tree / "b.jpg", ns=(0, 0))
    second, _ = found.write()
    (tree / "b.jpg").rename(tree / "c.jpg")
    third, _ = found.write()
    assert len({first, second, third}) == 3


def test_a_name_with_a_line_break_is_refused(tree, tmp_path) -> None:
    (tree / "two\nlines.jpg").touch()
    with pytest.raises(ValueError, match=r"the name '.*two\\nlines.jpg' contains a line break; rename it"):
        Listing(tree, tmp_path / "work").write()


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
    listed = Listing(root / "images", root / "work")
    listed.write()
    assert listed.names(0, 1) == ["1.jpg"]
