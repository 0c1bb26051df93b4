"""CSV files: exact bytes, and one writer at a time."""

from cl.runtime.tables import write_csv


def test_names_are_as_they_are_and_lines_end_with_a_line_feed_alone(tmp_path) -> None:
    """Also names that a spreadsheet takes for formulas: another program finds the image by its name."""
    write_csv(tmp_path / "table.csv", ["name", "number"], [["=1+1.jpg", 1], ["-a.jpg", -1.5], ["'@b.jpg", 2]])
    assert (tmp_path / "table.csv").read_bytes() == b"name,number\n=1+1.jpg,1\n-a.jpg,-1.5\n'@b.jpg,2\n"


def test_two_writers_of_a_file_do_not_mix(tmp_path) -> None:
    """The second begins and ends while the first is writing."""

    def rows():  # type: ignore[no-untyped-def]
        yield ["first"]
        write_csv(tmp_path / "x.csv", ["a"], [["second"]])
        yield ["last"]

    write_csv(tmp_path / "x.csv", ["a"], rows())
    assert (tmp_path / "x.csv").read_text() == "a\nfirst\nlast\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]
