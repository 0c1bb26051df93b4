"""CSV files of finished runs: what is written is read again, and damage is named."""

from pathlib import Path

import pytest

from benchmarks import methods, photos, rows
from tests.support.project import ROOT


@pytest.mark.parametrize("before", [None, "", "a,b\n", "a,b\n1,x", "a,b\n1,x\n"])
def test_rows_are_read_as_they_were_added(before: str | None, tmp_path: Path) -> None:
    """Also to no file, an empty one, and one whose last line does not end."""
    file = tmp_path / "runs.csv"
    if before is not None:
        file.write_text(before)
    kept = rows.read(file, ["a", "b"])
    rows.append(file, ["a", "b"], [[1, "x, y"]])
    rows.append(file, ["a", "b"], [[2, "z"], [3, ""]])
    assert file.read_text().endswith('1,"x, y"\n2,z\n3,\n')
    added = [{"a": "1", "b": "x, y"}, {"a": "2", "b": "z"}, {"a": "3", "b": ""}]
    assert rows.read(file, ["a", "b"]) == [*kept, *added]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\n1,2\n", "its first line must be a,b, not a,c"),
        ("a,b\n1,2\n3\n", "line 3: found 1 of 2 columns; delete the line"),
        ("a,b\n1,2,3\n", "line 2: found 3 of 2 columns"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        rows.read(tmp_path / "runs.csv", ["a", "b"])


@pytest.mark.parametrize("benchmark", [methods, photos])
def test_the_pages_show_the_tables_of_their_rows(benchmark) -> None:
    file = ROOT / benchmark.FILE
    table = benchmark.table(rows.read(file, benchmark.COLUMNS))
    assert table in file.with_suffix(".md").read_text()
