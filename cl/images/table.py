"""A CSV or Parquet table of paths, labels, groups and splits, read as text.

Spaces around a cell are ignored; a cell in MISSING counts as empty. Rows without any cell are left out.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from os.path import exists, isfile
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from unicodedata import normalize

from cl.console.wording import counted
from cl.images.folders import check_printable, is_image_folder, wrong_suffix
from cl.runtime.stores import is_url

# The columns and their synonyms, without case, plural, spaces and punctuation.
COLUMNS = {
    "path": "file filename filepath image imagefile imagename imagepath img imgname imgpath",
    "label": "annotation category class classname target",
    "group": "clip patient patientid series slide source subject subjectid video videoid",
    "split": "fold partition phase set subset usage",
}
DELIMITERS = ",;\t"  # the most frequent one in the header: Excel writes semicolons in much of Europe
TOLD_DELIMITER = re.compile(r"sep=(.)\r?\n")  # the first line of some tables, for Excel
SHOWN = 3  # sentences about spellings
ZERO, ONE = {"0.0", "false"}, {"1.0", "true"}  # cells of a column of a class
DECIMAL, MEASURED = re.compile(r"-?\d*\.\d*[1-9]\d*"), 10  # more values with decimal places are measured
JOINED = re.compile(r"[|,;\s]+")  # between labels in one cell
# As in pandas.
MISSING = {"", "#N/A", "<NA>", "N/A", "NA", "NULL", "NaN", "NaT", "None", "n/a", "nan", "null"}


def column_of(name: str) -> str | None:
    """Which of COLUMNS a column's name means."""
    plain = re.sub(r"[\W_]", "", name.casefold())
    for column, synonyms in COLUMNS.items():
        if {plain, plain.removesuffix("s"), plain.removesuffix("es")} & {column, *synonyms.split()}:
            return column
    return None


def similar(classes: list[str]) -> list[str]:
    """A sentence per class that an earlier one nearly equals, and one if some seem to be several labels."""
    remarks = alike(classes, "classes")
    words = {name: JOINED.split(name) for name in classes}
    counts = Counter(word for parts in words.values() for word in parts)
    joined = [
        name
        for name, parts in words.items()
        if "|" in name
        or name.startswith("[")
        or (any(part in words for part in parts) and min(counts[part] for part in parts) > 1)
        if len(parts) > 1
    ]
    if joined:
        remarks.append(
            f"{joined[0]!r} and {counted(len(joined) - 1, 'other labels')} seem to be several labels in one "
            "cell; `cl` splits them at --separator, and training takes one for each image"
        )
    return remarks


def alike(values: Sequence[str], kind: str) -> list[str]:
    """Sentences about values that earlier ones nearly equal, and about measurements.

    At most SHOWN of similar ones, and how many more there are.
    """
    first: dict[str, str] = {}
    found = [
        f"{other!r} and {value!r} look alike: they are two {kind}"
        for value in values
        if (other := first.setdefault(_spelling(value), value)) != value
    ]
    more = [f"and {len(found) - SHOWN} more {kind}"] if len(found) > SHOWN else []
    numbers = [value for value in values if DECIMAL.fullmatch(value)]
    if len(numbers) > MEASURED:
        each = f"each of {len(numbers)} numbers, such as {numbers[0]}, is one of the {kind}"
        more.append(f"{each}; if they are measurements, write ranges")
    return found[:SHOWN] + more


def _spelling(text: str) -> str:
    try:
        return str(float(text))
    except ValueError:
        return "".join(filter(str.isprintable, normalize("NFKC", text).casefold()))


def with_backslashes(path: str, place: object) -> ValueError:
    """The error about a path as Windows writes it."""
    return ValueError(f"{place}: the path {path} has backslashes; write {path.replace(chr(92), '/')}")


def on_disk(folder: Path, name: str, suffixes: set[str]) -> str:
    """The name as that of the file: with its suffix, and its accents, which a Mac decomposes.

    Raises ValueError if it has no suffix, and several files have its name.
    """
    ends = ["", *sorted(suffixes)] if wrong_suffix(PurePath(name), suffixes) else [""]
    if is_url(folder) or (name.isascii() and len(ends) == 1):
        return name
    accents = dict.fromkeys((name, normalize("NFC", name), normalize("NFD", name)))
    forms = (form + end for form in accents for end in ends)
    # Unlike those of pathlib, these functions refuse no long name.
    found = [form for form in forms if (exists if is_image_folder(form, suffixes) else isfile)(folder / form)]
    if len({normalize("NFC", form).casefold() for form in found}) > 1 and found[0] != name:
        raise ValueError(
            f"{name} is {PurePath(found[0]).name} or {PurePath(found[1]).name}; write the suffix"
        )
    return found[0] if found else name


class ImageRow(NamedTuple):
    """A row of a table and its number; an empty cell is None. others: of the columns given by name."""

    number: int
    path: str
    label: str | None = None
    group: str | None = None
    split: str | None = None
    others: tuple[str | None, ...] = ()

    @property
    def unit(self) -> str:
        """What stays in one split: the group, or the path of an image without one."""
        return self.group or self.path


class Table(NamedTuple):
    """The rows of a table, those of COLUMNS that it has, a line on its columns, and names of unread ones."""

    rows: list[ImageRow]
    columns: list[str]
    about: str
    unread: list[str]


def read(
    table: Path, names: Mapping[str, str], naming: str = "", others: Mapping[str, str] | None = None
) -> Table:
    """Read a table of images.

    Args:
        names: what the table calls each of COLUMNS to read. One that has its own name may be there under a
            synonym instead. `red,blue` for label: columns with a 1 for the images of these classes.
        naming: the option that names a column, for messages, such as "--column {}"; "" if there is none.
        others: further columns, or some of COLUMNS again, by the options that name them.

    Raises:
        ValueError: the table is damaged, lacks `path` or a column with another name than its own, or has two
            for one; or a row has no path, a URL, a path with backslashes, or a control character.
    """
    others = others or {}
    content, about, unread = _columns(table, names, naming, others)
    empty: list[str | None] = [None] * len(content["path"])
    first = 2 if table.suffix.lower() == ".csv" else 1  # an editor counts the header as line 1
    rows = []
    columns = [*COLUMNS, *others]
    for number, cells in enumerate(zip(*(content.get(name, empty) for name in columns), strict=True), first):
        path, place = cells[0], f"{table}, row {number}"
        if not any(cells):
            continue
        if not path:
            raise ValueError(f"{place}: the path is empty")
        if "\\" in path:
            raise with_backslashes(path, place)
        if is_url(path):
            raise ValueError(
                f"{place}: {path} is a URL; download the images, and write the paths of the files"
            )
        for name, cell in zip(columns, cells, strict=True):
            check_printable(cell or "", f"{place}, {name}")
        _, label, group, split = cells[: len(COLUMNS)]
        rows.append(ImageRow(number, path, label, group, split, cells[len(COLUMNS) :]))
    return Table(rows, [*content], about, unread)


def columns_in(table: Path) -> list[str]:
    """The names of a table's columns; raises as `read` if it is damaged."""
    return list(_read_as_text(table, lambda name: False).column_names)


def _columns(
    table: Path, names: Mapping[str, str], naming: str, others: Mapping[str, str]
) -> tuple[dict[str, list[str | None]], str, list[str]]:
    """The cells of each of the columns, see `read`; one line on all columns; the names of unread ones."""
    one_hot = names.get("label", "").split(",")
    named = *names.values(), *others.values()
    parsed = _read_as_text(table, lambda name: name in (*named, *one_hot) or column_of(name) in names)
    every, found, used = parsed.column_names, dict[str, list[str | None]](), dict[str, str]()
    missing: list[str] = []
    for column, name in names.items():
        synonyms = [other for other in every if column_of(other) == column and other not in names.values()]
        here = [other for other in every if other == name] or (synonyms if name == column else [])
        if len(here) > 1:
            raise ValueError(
                f"{table} has the columns {' and '.join(here)} for one {column}; remove or rename one"
            )
        if here:
            found[column] = _cells(parsed, here[0], column, missing)
            used[here[0]] = here[0] if here[0] == column else f"{here[0]} as {column}"
        elif column == "label" and len(one_hot) > 1 and all(every.count(each) == 1 for each in one_hot):
            found[column], zeros = _from_one_hot(parsed.select(one_hot).to_pylist(), table)
            if zeros:
                missing.append(f"rows of zeros, which count as not labelled (add a column?): {zeros}")
            used |= {each: f"{each} as a label" for each in one_hot}
        elif name != column:
            given = f"{naming.format(column)}={name}"
            raise ValueError(f"{given}, but {table} has the columns {', '.join(every)}; choose one")
        elif column == "path":
            remedy = (
                f"name the column of paths with {naming.format('path')}=..."
                if naming
                else "call one of them path"
            )
            raise ValueError(f"{table} has the columns {', '.join(every)}; {remedy}")
    for option, name in others.items():
        if name in found:  # a column of COLUMNS, whatever the table calls it
            found[option] = found[name]
        elif every.count(name) == 1:
            found[option] = _cells(parsed, name, name, missing)
        else:
            raise ValueError(f"{option}={name}, but {table} has the columns {', '.join(every)}; choose one")
        used[name] = f"{used.get(name, name)} as {option}"
    unread = [name for name in every if name not in used]
    about = [f"{table}: columns {', '.join(used.values())}", *missing]
    if unread:
        about.append(f"ignored: {', '.join(name or repr(name) for name in unread)}")
    ignored = (column for name, column in zip(every, parsed.columns, strict=True) if name not in used)
    if swallowing := list(filter(None, map(_over_lines, ignored))):
        about.append(f"{swallowing[0]!r} is one cell of several lines; if rows are missing, close its quote")
    return found, "; ".join(about), unread


def _cells(parsed: Any, name: str, meaning: str, missing: list[str]) -> list[str | None]:
    """The cells of a column; `on_disk` finds the file of a path, whatever its accents.

    A sentence for each word that counts as an empty cell, and may be a class called NA, goes to `missing`.
    """
    texts = parsed.column(name).to_pylist()
    words = Counter(text.strip() for text in texts if text)
    empty = sorted(MISSING.intersection(words) - {""})
    missing += [f"cells {word!r} that count as no {meaning}: {words[word]}" for word in empty]
    cells = [_cell(text) for text in texts]
    return cells if meaning == "path" else [cell and normalize("NFC", cell) for cell in cells]


def _over_lines(column: Any) -> str | None:
    """The start of the first cell of several lines, in a column that may hold anything."""
    from pyarrow import types

    cells = column.to_pylist() if types.is_string(column.type) else []
    return next((cell.replace("\n", " ")[:40] for cell in cells if cell and "\n" in cell), None)


def _from_one_hot(rows: list[dict[str, str | None]], table: Path) -> tuple[list[str | None], int]:
    """The label of each row, several as a list in brackets; how many rows have a 0 in each column."""
    labels, zeros = list[list[str]](), 0
    for row in rows:
        spelt = {name: _spelling(_cell(cell) or "0") for name, cell in row.items()}
        if other := next((name for name, cell in spelt.items() if cell not in ZERO | ONE), None):
            raise ValueError(f"{table}: {row[other]!r} in the column {other}, expected 0 or 1")
        labels.append([name for name, cell in spelt.items() if cell in ONE])
        zeros += not labels[-1] and all(_cell(cell) for cell in row.values())
    return [f"[{','.join(names)}]" if len(names) > 1 else "".join(names) or None for names in labels], zeros


def _cell(cell: str | None) -> str | None:
    return None if cell is None or cell.strip() in MISSING else cell.strip()


def _read_as_text(table: Path, is_used: Callable[[str], bool]) -> Any:
    """A pyarrow.Table from CSV or Parquet; used columns become text, so that 007 remains 007."""
    import pyarrow
    from pyarrow import csv, parquet

    try:
        content = table.read_bytes()
        if table.suffix.lower() == ".parquet":
            parsed = parquet.read_table(io.BytesIO(content))
        elif content[:2] in (b"\xff\xfe", b"\xfe\xff") or (len(content) > 1 and not any(content[1:20:2])):
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
