"""Files of features and image names: Parquet, .npy with a .txt, or CSV.

Writers add part by part: `append` takes features (n, *shape) float32 and n names, with shape (D,), or
(H', W', D) for patches; `paths` are the written files, with the features last.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv


@dataclass(frozen=True, repr=False)
class Features:
    """The features of N images.

    names: N paths, from the folder in `notes`.
    features: (N, D) float32, or (N, H', W', D) of patches.
    notes: `sha256` and `transform` of the encoder, `shape` and `folder`, where the format stores them.
    """

    names: list[str]
    features: np.ndarray
    notes: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.features.shape[1:]))
        return f"Features({len(self.names)} images, {size} features each)"


class Parquet:
    """Columns `name` and `features` (lists of numbers), a row group for each part."""

    def __init__(self, path: Path, shape: tuple[int, ...], notes: dict[str, str]) -> None:
        self.paths = [path]
        columns = [("name", pa.string()), ("features", pa.list_(pa.float32(), math.prod(shape)))]
        schema = pa.schema(columns, metadata=notes)
        self._writer = pq.ParquetWriter(path, schema, use_dictionary=False, write_page_checksum=True)
        self.close = self._writer.close

    def append(self, names: list[str], features: np.ndarray) -> None:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features[0].size)
        self._writer.write_table(pa.table([pa.array(names), lists], schema=self._writer.schema))

    @staticmethod
    def read(path: Path) -> Features:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        schema, rows = file.schema_arrow, file.metadata.num_rows
        if not {"name", "features"} <= {*schema.names}:
            raise ValueError(f"it has the columns {', '.join(schema.names)}, expected name and features")
        names: list[str] = []
        features = np.empty((rows, 0), np.float32)
        for batch in file.iter_batches(2**14, columns=["name", "features"]):
            # pandas writes lists of any length
            widths = set(pc.list_value_length(batch["features"]).to_pylist())
            if len(widths) > 1:
                raise ValueError(f"its rows have {widths} features")
            part = batch["features"].flatten().to_numpy().reshape(len(batch), *widths)
            if not names:
                features = np.empty((rows, *widths), np.float32)
            features[len(names) : len(names) + len(batch)] = part
            names += batch["name"].cast(pa.string()).to_pylist()
        notes = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        return Features(names, features.reshape(rows, *json.loads(notes.get("shape", "[-1]"))), notes)


class Npy:
    """An array (n, *shape) float32, and a text file with a name per line; it cannot store notes."""

    def __init__(self, path: Path, shape: tuple[int, ...], notes: dict[str, str]) -> None:
        self.paths = [path.with_suffix(".txt"), path]
        self._names, self._features = (path.open("wb") for path in self.paths)
        self._rows, self._shape = 0, shape
        self._write_header()

    def _write_header(self) -> None:
        """Write the header for the rows so far; NumPy pads it to the same size for any number of rows."""
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._rows, *self._shape)}
        np.lib.format.write_array_header_1_0(self._features, header)

    def append(self, names: list[str], features: np.ndarray) -> None:
        self._names.write("".join(f"{name}\n" for name in names).encode())
        self._features.write(np.ascontiguousarray(features, "<f4").data)
        self._rows += len(features)

    def close(self) -> None:
        self._features.seek(0)
        self._write_header()
        self._names.close()
        self._features.close()

    @staticmethod
    def read(path: Path) -> Features:
        with path.with_suffix(".txt").open(encoding="utf-8-sig", newline="\n") as file:
            names = [line.rstrip("\r\n") for line in file]
        features = np.load(path, mmap_mode="r")
        if features.dtype.kind not in "fiu":
            raise ValueError(f"it has values of {features.dtype}")
        return Features(names, features.astype(np.float32, copy=False))  # float32 stays on the disk


class Csv:
    """Columns `name` and 0 to D - 1, for few images; it cannot store notes and patches."""

    def __init__(self, path: Path, shape: tuple[int, ...], notes: dict[str, str]) -> None:
        self.paths = [path]
        columns = [("name", pa.string()), *((str(column), pa.float32()) for column in range(*shape))]
        self._schema = pa.schema(columns)
        self._writer = csv.CSVWriter(path, self._schema)
        self.close = self._writer.close

    def append(self, names: list[str], features: np.ndarray) -> None:
        columns = [pa.array(names), *map(pa.array, features.T)]
        self._writer.write_table(pa.table(columns, schema=self._schema))

    @staticmethod
    def read(path: Path) -> Features:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            if "," not in file.readline():
                raise ValueError("save it with commas between cells and decimal points")
        options = csv.ConvertOptions(column_types={"name": pa.string()})
        layout = csv.ParseOptions(newlines_in_values=True)
        table = csv.read_csv(path, parse_options=layout, convert_options=options)
        names = table["name"].to_pylist()
        numbers = [str(number) for number in range(table.num_columns - 1)]
        columns = [column.cast(pa.float64()).to_numpy() for column in table.select(numbers).columns]
        return Features(names, np.stack(columns, axis=1).astype(np.float32))


FORMATS: dict[str, type[Parquet | Npy | Csv]] = {".parquet": Parquet, ".npy": Npy, ".csv": Csv}


def read(path: Path, *, patches: bool = False) -> Features:
    """Read a file that `cl embed` has written, with `patches` also of patches; ValueError for any other.

    A .npy file stays on the disk and is mapped into memory.
    """
    try:
        if path.suffix not in FORMATS:
            raise ValueError(f"its name does not end in {', '.join(FORMATS)}")
        if not path.exists():
            raise ValueError("it does not exist")
        with np.errstate(over="ignore"):  # `matching` refuses infinity by the image's name
            features = FORMATS[path.suffix].read(path)
        shape = tuple(features.features.shape)
        if len(shape) not in ((2, 4) if patches else (2,)) or len(features.names) != len(features.features):
            raise ValueError(f"it has shape {shape} for {len(features.names)} names, expected a vector each")
        if not all(features.names):
            raise ValueError("it has images without a name")
        return features
    except Exception as error:  # damaged bytes can make the readers raise anything
        why = " ".join(str(error).split())
        raise ValueError(f"{path} is not a file of features ({why}); write one with `cl embed`") from error
