"""Where tables of results are written."""

import pytest

from cl.commands.outputs.tables import target_of


def test_targets_that_cannot_be_written_are_refused_and_home_is_found(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"x\.csv: cannot write in .*file \(Not a directory\); choose"):
        target_of(tmp_path / "file/sub/x.csv")
    with pytest.raises(ValueError, match="--to .*/proc"):
        target_of("/proc/x.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert target_of("~/x.csv") == tmp_path / "x.csv"
