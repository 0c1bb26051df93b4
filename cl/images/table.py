"""A CSV or Parquet table of paths, labels, groups and splits, read as text.

Spaces around a cell are ignored; a cell in MISSING counts as empty. Rows without any cell are left out.
"""

import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

from cl.images.folders import check_class
from cl.runtime.stores import is_url
from cl.runtime.tables import with_formula

# The columns and their synonyms, without case, plural, spaces and punctuation.
COLUMNS = {
    "path": "file filename filepath image imagefile imagename imagepath img imgname imgpath",
    "label": "annotation category class classname target",
    "group": "clip patient patientid series slide source subject subjectid video videoid",
    "split": "fold partition phase set subset usage",
}
DELIMITERS = ",;\t"  # the most frequent one in the header: Excel writes semicolons in much of Europe
TOLD_DELIMITER = re.compile(r"sep=(.)\r?\n")  # the first line of some tables, for Excel
# As in pandas.
MISSING = {"", "#N/A", "<NA>", "N/A", "NA", "NULL", "NaN", "NaT", "None", "n/a", "nan", "null"}


def column_of(name: str) -> str | None:
    """Which of COLUMNS a column's name means."""
    plain = _plain(name)
    for column, synonyms in COLUMNS.items():
        if {plain, plain.removesuffix("s"), plain.removesuffix("es")} & {column, *synonyms.split()}:
            return column
    return None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def similar(classes: list[str]) -> list[str]:
    """A sentence per class whose name differs from an earlier one only by case."""
    first: dict[str, str] = {}
    return [
        f"the labels {other!r} and {name!r} differ only by case: they are two classes"
        for name in classes
        if (other := first.setdefault(name.casefold(), name)) != name
    ]


def with_backslashes(path: str, place: object) -> ValueError:
    """The error about a path as Windows writes it."""
    return ValueError(f"{place}: the path {path} has backslashes; write {path.replace(chr(92), '/')}")


def on_disk(folder: Path, name: str) -> str:
    """The name with its accents encoded as those of the file: a Mac decomposes them."""
    if name.isascii() or is_url(folder):
        return name
    forms = (name, normalize("NFC", name), normalize("NFD", name))
    return next((form for form in forms if (folder / form).exists()), name)


class ImageRow(NamedTuple):
    """A row of a table and its number; an empty cell is None."""

    number: int
    path: str
    label: str | None = None
    group: str | None = None
    split: str | None = None

    @property
    def unit(self) -> str:
        """What stays in one split: the group, or the path of an image without one."""
        return self.group or self.path


class Table(NamedTuple):
    """The rows of a table, those of COLUMNS that it has, and a line with the used and the ignored columns."""

    rows: list[ImageRow]
    columns: list[str]
    about: str


def read(table: Path, *columns: str, names: Mapping[str, str] | None = None) -> Table:
    """Read a table of images.

    Args:
        columns: those of COLUMNS to read. The table may have each under one synonym instead.
        names: what the table calls each, if it has another name.

    Raises:
        ValueError: the table is damaged, lacks `path` or a column with another name than its own, or has two
            for one; or a row has no path, a path with backslashes, or a control character.
    """
    content, about = _columns(table, names or dict(zip(columns, columns, strict=True)))
    empty: list[str | None] = [None] * len(content["path"])
    first = 2 if table.suffix.lower() == ".csv" else 1  # an editor counts the header as line 1
    rows = []
    for number, cells in enumerate(zip(*(content.get(name, empty) for name in COLUMNS), strict=True), first):
        path, place = cells[0], f"{table}, row {number}"
        if not any(cells):
            continue
        if not path:
            raise ValueError(f"{place}: the path is empty")
        if "\\" in path:
            raise with_backslashes(path, place)
        for name, cell in zip(COLUMNS, cells, strict=True):
            check_class(cell or "", f"{place}, {name}")
        rows.append(ImageRow(number, path, *cells[1:]))
    return Table(rows, [*content], about)


def _columns(table: Path, names: Mapping[str, str]) -> tuple[dict[str, list[str | None]], str]:
    """The cells of each of the columns, see `read`; one line with the used and the ignored columns."""
    parsed = _read_as_text(table, lambda name: name in names.values() or column_of(name) in names)
    every, found, used = parsed.column_names, dict[str, list[str | None]](), dict[str, str]()
    unescaped = str if table.suffix.lower() == ".parquet" else with_formula
    for column, name in names.items():
        synonyms = [other for other in every if column_of(other) == column and other not in names.values()]
        here = [other for other in every if other == name] or (synonyms if name == column else [])
        if len(here) > 1:
            raise ValueError(
                f"{table} has the columns {' and '.join(here)} for one {column}; remove or rename one"
            )
        if here:
            cells = [
                _cell(cell and unescaped(cell)) for cell in parsed.column(every.index(here[0])).to_pylist()
            ]
            if column != "path":  # `on_disk` finds the file
                cells = [cell and normalize("NFC", cell) for cell in cells]
            found[column] = cells
            used[here[0]] = here[0] if here[0] == column else f"{here[0]} as {column}"
        elif name != column:
            raise ValueError(
                f"dataset.columns.{column}={name}, but {table} has the columns {', '.join(every)}; choose one"
            )
        elif column == "path":
            raise ValueError(f"{table} has the columns {', '.join(every)}; call one of them path")
    ignored = ", ".join(name or "''" for name in every if name not in used)
    about = f"{table}: columns {', '.join(used.values())}"
    return found, about + (f"; ignored: {ignored}" if ignored else "")


def _cell(cell: str | None) -> str | None:
    return None if cell is None or cell.strip() in MISSING else cell.strip()


def _read_as_text(table: Path, is_used: Callable[[str], bool]) -> Any:
    """A pyarrow.Table from CSV or Parquet; used columns become text, so that 007 remains 007.

    Raises:
        ValueError: the table is missing or damaged.
    """
    import pyarrow
    from pyarrow import csv, parquet

    try:
        content = table.read_bytes()
        if table.suffix.lower() == ".parquet":
            parsed = parquet.read_table(io.BytesIO(content))
        elif content[:2] in (b"\xff\xfe", b"\xfe\xff") or not any(content[1:20:2] or b"x"):
            raise ValueError(f"{table} is UTF-16 text, expected UTF-8; save it again as CSV UTF-8")
        else:
            text = content.decode("utf-8-sig")
            if told := TOLD_DELIMITER.match(text):
                content = text[told.end() :].encode()
            header = re.sub('"[^"]*"', "", text).partition("\n")[0]
            delimiter = told[1] if told else max(DELIMITERS, key=header.count)
            layout = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            names = csv.open_csv(io.BytesIO(content), parse_options=layout).schema.names
            used = {name: pyarrow.string() for name in names if is_used(name)}
            options = csv.ConvertOptions(column_types=used, strings_can_be_null=True, null_values=[""])
            parsed = csv.read_csv(io.BytesIO(content), parse_options=layout, convert_options=options)
        kinds = [pyarrow.string() if is_used(field.name) else field.type for field in parsed.schema]
        return parsed.cast(pyarrow.schema(list(zip(parsed.column_names, kinds, strict=True))))
    except UnicodeDecodeError as error:
        raise ValueError(f"{table} is not UTF-8 text; save it again as CSV UTF-8") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{table} cannot be read as a table: {' '.join(str(error).split())}") from error
