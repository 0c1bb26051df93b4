"""Where tables of results are written."""

import pytest

import cl
from cl.commands.inputs import feature_files
from cl.commands.paths import target_of
from tests.support.pictures import picture_file
from tests.support.resnets import save_encoder


def test_targets_that_cannot_be_written_are_refused_and_home_is_found(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"x\.csv: cannot write in .*file \(Not a directory\); choose"):
        target_of(tmp_path / "file/sub/x.csv")
    with pytest.raises(ValueError, match="--to .*/proc"):
        target_of("/proc/x.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert target_of("~/x.csv") == tmp_path / "x.csv"


def test_a_link_is_written_through(tmp_path) -> None:
    """By every command, here by two; what it leads to may be missing yet."""
    save_encoder(tmp_path / "encoder.safetensors", width=1)
    for number in range(3):
        picture_file(tmp_path / f"images/{number}.jpg", number)
    links = {name: tmp_path / name for name in ("here.npy", "here.txt", "found.csv", "timm")}
    (tmp_path / "store").mkdir()
    for name, link in links.items():
        link.symlink_to(tmp_path / f"store/{name}")
    cl.embed(tmp_path / "images", encoder=tmp_path / "encoder.safetensors", to=links["here.npy"])
    cl.search(links["here.npy"], "0.jpg", to=links["found.csv"])
    cl.export("timm", encoder=tmp_path / "encoder.safetensors", to=links["timm"])
    assert all(link.is_symlink() and link.exists() for link in links.values())
    assert feature_files.read(links["here.npy"]).names == ["0.jpg", "1.jpg", "2.jpg"]
    with pytest.raises(ValueError, match="must be a file that ends in"):
        (tmp_path / "other.csv").symlink_to(tmp_path / "store/other")
        target_of(tmp_path / "other.csv")
