"""Files of features: read back as they were written, in parts; others are refused with their reason."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from cl.commands.inputs import feature_files, matching
from cl.commands.inputs.matching import is_features
from cl.encoders.encoder import IMAGENET
from tests.support.files import damaged

NAMES = ["a/\r1.jpg", "é, 'q'\".png", "=HYPERLINK(1).jpg", "-2.jpg", "'-5.jpg"]


@pytest.mark.parametrize("suffix", feature_files.FORMATS)
def test_names_and_features_are_read_back_exactly(suffix, tmp_path) -> None:
    path = tmp_path / f"features{suffix}"
    features = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32) * 1e-3
    with closing(feature_files.FORMATS[path.suffix](path, (3,), {"sha256": "x"})) as file:
        for part in (slice(0, 2), slice(2, 5)):
            file.append(NAMES[part], features[part])
    assert suffix != ".csv" or '"-2.jpg"' in path.read_text(), "another program finds the image by its name"
    found = feature_files.read(path)
    assert found.names == NAMES
    assert found.features.dtype == np.float32
    np.testing.assert_array_equal(found.features, features)
    assert found.notes == ({"sha256": "x"} if suffix == ".parquet" else {})
    assert isinstance(found.features, np.memmap) == (suffix == ".npy")


def test_parquet_that_pandas_has_saved(tmp_path) -> None:
    """Its lists may have any length, and names may be numbers, but not missing."""
    path = tmp_path / "features.parquet"
    for rows in ([[1, 2], [3, 4]], [[1], [2, 3, 4]]):
        lists = pa.array(rows, pa.list_(pa.float64()))
        pq.write_table(pa.table({"name": ["1.jpg", "2.jpg"], "features": lists}), path)
        if len(rows[0]) == 2:
            np.testing.assert_array_equal(feature_files.read(path).features, rows)
    with pytest.raises(ValueError, match=r"its rows have \{1, 3\} features"):
        feature_files.read(path)
    for names in ([1, 2], [1, None]):
        pq.write_table(pa.table({"name": names, "features": [[1.0], [2.0]]}), path)
        if all(names):
            assert feature_files.read(path).names == ["1", "2"]
    with pytest.raises(ValueError, match="without a name"):
        feature_files.read(path)


def test_csv_that_another_program_has_saved(tmp_path) -> None:
    """With its columns sorted by name; with an index or labels, it is refused."""
    path = tmp_path / "features.csv"
    features = np.random.default_rng(0).normal(size=(5, 12)).astype(np.float32)
    with closing(feature_files.FORMATS[path.suffix](path, (12,), {})) as file:
        file.append(NAMES, features)
    table = csv.read_csv(path)
    csv.write_csv(table.select(sorted(table.column_names)), path)
    found = feature_files.read(path)
    assert found.names == NAMES
    np.testing.assert_array_equal(found.features, features)
    assert is_features(path)
    for name in ("", "Unnamed: 0", "label", "12.5"):
        csv.write_csv(table.add_column(0, name, pa.array(range(5))), path)
        with pytest.raises(ValueError, match="is not a file of features"):
            feature_files.read(path)


def test_line_breaks_in_names_of_large_csv_files(tmp_path) -> None:
    """PyArrow reads a file in blocks of 1 MiB; a name may lie in two of them."""
    path, names = tmp_path / "features.csv", [f"{number}\r{number:0100}.jpg" for number in range(30_000)]
    with closing(feature_files.FORMATS[path.suffix](path, (1,), {})) as file:
        file.append(names, np.ones((len(names), 1), np.float32))
    assert feature_files.read(path).names == names


def test_names_that_an_editor_has_saved(tmp_path) -> None:
    """With a byte order mark, the line ends of Windows, and none after the last name."""
    np.save(tmp_path / "features.npy", np.zeros((2, 3)))
    (tmp_path / "features.txt").write_bytes(b"\xef\xbb\xbf1.jpg\r\n2.jpg")
    assert feature_files.read(tmp_path / "features.npy").names == ["1.jpg", "2.jpg"]


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_other_files_are_refused_with_their_reason(tmp_path) -> None:
    np.save(tmp_path / "alone.npy", np.zeros((2, 3)))
    np.save(tmp_path / "fewer.npy", np.zeros((2, 3)))
    (tmp_path / "fewer.txt").write_text("1.jpg\n")
    np.save(tmp_path / "words.npy", np.array([["1.5"]]))
    (tmp_path / "words.txt").write_text("1.jpg\n")
    pq.write_table(pa.table({"path": ["1.jpg"], "embedding": [[1.0]]}), tmp_path / "columns.parquet")
    wrong = {
        tmp_path / "none.parquet": r"\(it does not exist\)",
        tmp_path / "features.h5": "does not end in .parquet, .npy, .csv",
        write(tmp_path / "text.parquet", "name"): "Parquet",
        write(tmp_path / "list.csv", "path,label\n1.jpg,a\n"): "name",
        write(tmp_path / "nameless.csv", "name,0\n,1\n"): "without a name",
        write(tmp_path / "excel.csv", "name;0;1\n1.jpg;0,5;1,2\n"): "commas",
        write(tmp_path / "tabs.csv", "name\t0\n1.jpg\t0.5\n"): "commas",
        tmp_path / "alone.npy": "alone.txt",
        tmp_path / "fewer.npy": r"shape \(2, 3\) for 1 names",
        tmp_path / "words.npy": "values of <U3",
        tmp_path / "columns.parquet": "columns path, embedding, expected name and features",
    }
    for path, reason in wrong.items():
        with pytest.raises(ValueError, match=f"{path.name} is not a file of features .*{reason}.*cl embed"):
            feature_files.read(path)


@pytest.mark.parametrize("suffix", feature_files.FORMATS)
def test_a_damaged_file_is_refused_or_gives_finite_features_of_each_name(suffix, tmp_path) -> None:
    """Any damage of a Parquet file is found, by its checksums."""
    rng, path = np.random.default_rng(0), tmp_path / f"features{suffix}"
    names, features = [f"{number}.jpg" for number in range(9)], rng.normal(size=(9, 3)).astype(np.float32)
    notes = {"transform": IMAGENET.model_dump_json(), "shape": "[3]"}
    with closing(feature_files.FORMATS[path.suffix](path, (3,), notes)) as file:
        file.append(names, features)
    content = path.read_bytes()
    for _ in range(150):
        path.write_bytes(damaged(content, rng))
        try:
            found = matching.read(path)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert np.isfinite(found.features).all()
            assert len({*found.names}) == len(found.features)
            assert suffix != ".parquet" or np.array_equal(found.features, features)
