"""Files of features and image names, written part by part: Parquet, or .npy with a .txt.

`append` adds (n, D) float32 features and n names; `paths` are the written files, with the features last.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


class Parquet:
    """Columns `name` and `features` (lists of D numbers), a row group for each part."""

    def __init__(self, path: Path, width: int, notes: dict[str, str]) -> None:
        self.paths = [path]
        columns = [("name", pa.string()), ("features", pa.list_(pa.float32(), width))]
        self._schema = pa.schema(columns, metadata=notes)
        self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=False)

    def append(self, names: list[str], features: np.ndarray) -> None:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), features.shape[1])
        self._writer.write_table(pa.table([pa.array(names), lists], schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class Npy:
    """An array (n, D) float32, and a text file with a name per line; it cannot store notes."""

    def __init__(self, path: Path, width: int, notes: dict[str, str]) -> None:
        self.paths = [path.with_suffix(".txt"), path]
        self._names, self._features = (path.open("wb") for path in self.paths)
        self._rows, self._width = 0, width
        self._header_size = self._write_header()

    def _write_header(self) -> int:
        """Write the header for the rows so far; NumPy pads it to the same size for any number of rows."""
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._rows, self._width)}
        np.lib.format.write_array_header_1_0(self._features, header)
        return self._features.tell()

    def append(self, names: list[str], features: np.ndarray) -> None:
        self._names.write("".join(f"{name}\n" for name in names).encode())
        self._features.write(np.ascontiguousarray(features, "<f4").data)
        self._rows += len(features)

    def close(self) -> None:
        self._features.seek(0)
        assert self._write_header() == self._header_size
        self._names.close()
        self._features.close()


FORMATS: dict[str, type[Parquet | Npy]] = {".parquet": Parquet, ".npy": Npy}
