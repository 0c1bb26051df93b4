"""CSV files: a name never becomes a formula of a spreadsheet."""

import csv

import pytest

from cl.runtime.tables import write_csv


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ('=HYPERLINK("http://example.com")', '\'=HYPERLINK("http://example.com")'),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-birds", "'-birds"),
        ("-1", "-1"),
        ("+0.5", "+0.5"),
        (-1.5, "-1.5"),
        ("birds = small", "birds = small"),
    ],
)
def test_a_cell_that_a_spreadsheet_would_run_gets_an_apostrophe(cell, written, tmp_path) -> None:
    write_csv(tmp_path / "table.csv", ["name"], [[cell]])
    with (tmp_path / "table.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["name"], [written]]


def test_lines_end_with_a_line_feed_alone(tmp_path) -> None:
    write_csv(tmp_path / "table.csv", ["name", "number"], [["a", 1]])
    assert (tmp_path / "table.csv").read_bytes() == b"name,number\na,1\n"


def test_two_writers_of_a_file_do_not_mix(tmp_path) -> None:
    """The second begins and ends while the first is writing."""

    def rows():  # type: ignore[no-untyped-def]
        yield ["first"]
        write_csv(tmp_path / "x.csv", ["a"], [["second"]])
        yield ["last"]

    write_csv(tmp_path / "x.csv", ["a"], rows())
    assert (tmp_path / "x.csv").read_text() == "a\nfirst\nlast\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]
