"""A classifier from a table of labels: what it writes, says and refuses."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cl
from cl.commands.classify import classify
from cl.runtime.tables import write_csv
from cl.statistics import interval
from tests.support.files import read_csv, write_features
from tests.support.pictures import picture_file
from tests.support.resnets import save_encoder
from tests.support.stages import run_cl

BIRDS = ["robin", "wren", "tit"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Features of 90 images in three clouds, and labels.csv for 60 of them."""
    rng = np.random.default_rng(0)
    features = np.eye(3, 16)[np.arange(90) % 3] + 0.3 * rng.normal(size=(90, 16))
    write_features(tmp_path / "features.parquet", features, {"sha256": "abc"})
    write_labels(tmp_path / "labels.csv", [(f"{n}.jpg", BIRDS[n % 3], f"p{n // 3}") for n in range(60)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_labels(path: Path, rows: list[tuple[str, ...]]) -> Path:
    write_csv(path, ["path", "label", "group"][: len(rows[0])], rows)
    return path


def run(options: str) -> list[str]:
    return run_cl("classify", *options.split()).output.splitlines()


def test_the_unlabelled_are_classified_and_the_labelled_held_out(folder) -> None:
    found = classify("labels.csv", features="features.parquet", to="new/out.csv", save="own/c.safetensors")
    assert found.quality is not None
    right = [a == BIRDS[n % 3] for n, a in enumerate(found.predicted)]
    assert np.mean(right[60:]) > 0.9
    assert found.quality.accuracy == pytest.approx(100 * np.mean(right[:60]))
    assert found.quality.majority == pytest.approx(100 / 3)
    saved = classify(features="features.parquet", classifier="own/c.safetensors")
    np.testing.assert_array_equal(saved.probabilities[60:], found.probabilities[60:])
    assert (saved.probabilities[:60] != found.probabilities[:60]).any(1).all()
    rows = read_csv(folder / "new/out.csv")
    assert [row["label"] for row in rows[:60:20]] == ["robin", "tit", "wren"]
    assert list(rows[0])[3:] == ["probability", "probability_robin", "probability_tit", "probability_wren"]
    assert [float(x) for x in list(rows[7].values())[4:]] == pytest.approx(found.probabilities[7], abs=6e-5)


def test_parquet_has_at_most_20_classes_in_columns(folder) -> None:
    names = [f"{n}.jpg" for n in range(63)]
    write_labels(folder / "many.csv", [(name, f"c{n % 21}") for n, name in enumerate(names)])
    run("--labels many.csv --features features.parquet --to few.parquet")
    assert pq.read_schema("few.parquet").names == ["path", "label", "predicted", "probability"]
    lines = run("--labels many.csv --features features.parquet --to all.parquet --every-class")
    assert len(pq.read_schema("all.parquet").names) == 25
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert any("9 more classes" in line for line in lines)


def test_equal_images_of_a_group_count_once(folder) -> None:
    """20 groups of three copies, whose features say little of their class."""
    features = np.random.default_rng(0).normal(size=(30, 16)).repeat(3, axis=0)
    write_features(folder / "copies.parquet", features)
    write_labels(folder / "copies.csv", [(f"{n}.jpg", BIRDS[n // 3 % 2], f"g{n // 3}") for n in range(60)])
    quality = classify("copies.csv", features="copies.parquet").quality
    assert quality and quality.interval and quality.accuracy
    assert 20 < quality.accuracy < 80
    found, alone = quality.interval, interval(quality.accuracy, 60)
    assert alone
    assert found[1] - found[0] > 1.5 * (alone.high - alone.low)


def test_bursts_are_held_out_together_unless_each_image_stands_alone(folder, capsys) -> None:
    """Twenty-four bursts of five images, whose label only a burst tells; a column of groups replaces them."""
    rng = np.random.default_rng(0)
    write_features(
        folder / "bursts.parquet",
        rng.normal(size=(24, 48)).repeat(5, 0) + 0.3 * rng.normal(size=(120, 48)),
    )
    birds = rng.permutation(np.arange(24) % 3)
    rows = [(f"{n}.jpg", BIRDS[birds[n // 5]], f"g{n}") for n in range(120)]
    write_labels(folder / "bursts.csv", [(*row[:2], "") for row in rows])  # an empty column tells nothing
    write_labels(folder / "alone.csv", rows)
    found = classify("bursts.csv", features="bursts.parquet").quality
    assert re.search(r"120 of 120 images are in about 2[1-5] bursts .*--ungrouped", capsys.readouterr().err)
    alone, ungrouped = (
        classify(labels, features="bursts.parquet", ungrouped=ungrouped).quality
        for labels, ungrouped in (("alone.csv", False), ("bursts.csv", True))
    )
    assert "bursts" not in capsys.readouterr().err
    assert alone == ungrouped
    assert alone.accuracy > 90 > 60 > found.accuracy
    assert alone.interval == pytest.approx(interval(alone.accuracy, 120 / (1 + 5 / 4)))
    low, high = found.interval
    assert low < 100 / 3 < high


def test_an_image_may_have_several_labels(folder) -> None:
    rows = [(f"{n}.jpg", f"{BIRDS[n % 3]};bird" if n % 2 else BIRDS[n % 3]) for n in range(60)]
    write_labels(folder / "several.csv", rows)
    found = classify("several.csv", features="features.parquet", save="c.safetensors")
    assert found.quality is not None
    assert found.quality.accuracy is None
    assert found.quality.by_class["robin"][1] > 95
    assert found.quality.mean_average_precision == pytest.approx(
        np.mean([precision for _, precision in found.quality.by_class.values()])
    )
    assert found.labels[1] == "bird;wren"
    likely = [{found.classes[c] for c in np.flatnonzero(row >= 0.5)} for row in found.probabilities]
    assert [set(filter(None, row.split(";"))) for row in found.predicted] == likely
    lines = run("--labels several.csv --features features.parquet")
    assert any("each label is predicted by itself" in line for line in lines)
    assert any(re.search(r"\d+ images with several labels, such as ", line) for line in lines)
    write_labels(folder / "grouped.csv", [(*row, f"g{n // 3}") for n, row in enumerate(rows)])
    grouped = classify("grouped.csv", features="features.parquet").quality
    alone, together = (quality.largest_calibration_error for quality in (found.quality, grouped))
    assert together > 1.5 * alone  # 20 groups say less than 60 images


def test_a_name_with_a_semicolon_is_one_class(folder) -> None:
    write_labels(folder / "names.csv", [(f"{n}.jpg", f"{BIRDS[n % 3]}; old") for n in range(60)])
    found = classify("names.csv", features="features.parquet", separator="|")
    for name in found.classes:
        assert re.search(rf"{name} .*% +{found.predicted[60:].count(name)}$", repr(found), re.MULTILINE)


def test_images_that_cannot_be_read_are_left_out(folder, capsys) -> None:
    save_encoder(folder / "encoder.safetensors")
    rows = [(f"{n}.jpg", BIRDS[n % 2]) for n in range(8)]
    for n in range(10):
        picture_file(folder / "images" / f"{n}.jpg", n, (24, 20))
    (folder / "images/7.jpg").write_bytes(b"no image")
    write_labels(folder / "images/labels.csv", rows)
    options = {"encoder": "encoder.safetensors", "to": "out.csv", "save": "c.safetensors"}
    found = classify("images/labels.csv", "images", **options)  # type: ignore[arg-type]
    assert found.names == [f"{n}.jpg" for n in range(10) if n != 7]
    assert found.quality is not None
    assert found.quality.images == 7
    cl.embed("images", encoder="encoder.safetensors", to="features.parquet")
    assert classify("images/labels.csv", features="features.parquet").quality == found.quality
    assert "labels.csv: left out 1 row, such as 7.jpg: no such image" in capsys.readouterr().err
    given: dict[str, Any]
    for given in ({}, {"encoder": cl.load("encoder.safetensors")}):  # by default, the encoder of the file
        again = cl.classify(images="images", classifier="c.safetensors", **given)
        np.testing.assert_allclose(again.probabilities[-2:], found.probabilities[-2:], atol=1e-5)
    assert repr(again).startswith("9 images, 2 classes\n")
    save_encoder(folder / "other.safetensors", seed=1)
    capsys.readouterr()
    with pytest.raises(ValueError, match=cl.load("encoder.safetensors").sha256[:12]):
        classify(images="images", encoder="other.safetensors", classifier="c.safetensors")
    assert "embed" not in capsys.readouterr().err, "it was refused only after all images were embedded"


def test_the_size_of_images_is_that_of_the_classifier(folder, capsys) -> None:
    """Unless it was trained on features without notes, which is said."""
    save_encoder(folder / "plain.safetensors", metadata={})
    (folder / "config.json").write_text('{"model_args": {"stem_padding": 1}}')
    for n in range(8):
        picture_file(folder / "images" / f"{n}.jpg", n)
    write_labels(folder / "few.csv", [(f"{n}.jpg", BIRDS[n % 2]) for n in range(8)])
    of: dict[str, Any] = {"images": "images", "encoder": "plain.safetensors"}
    size = {"resize": 24, "crop": 24}
    classify("few.csv", save="c.safetensors", **of, **size)
    found, expected = (classify(classifier="c.safetensors", **of, **given) for given in ({}, size))
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    capsys.readouterr()
    with pytest.raises(ValueError, match="resize 32, not 24.*size"):
        classify(classifier="c.safetensors", resize=32, crop=32, **of)
    assert "embed" not in capsys.readouterr().err
    cl.embed(**of, **size, to="features.npy")
    classify("few.csv", features="features.npy", save="silent.safetensors")
    classify(classifier="silent.safetensors", **of, **size)
    assert re.search(r"silent\.safetensors do not both record their encoder", capsys.readouterr().err)


def test_mistakes_leave_no_file(folder) -> None:
    nan = np.ones((90, 16))
    nan[17, 3] = np.nan
    write_features(folder / "nan.parquet", nan)
    pq.write_table(pa.concat_tables([pq.read_table("features.parquet")] * 2), folder / "twice.parquet")
    (folder / "empty").mkdir()
    before = sorted(folder.iterdir())
    features = {"features": "features.parquet"}
    for options, message in (
        ({"features": "nan.parquet"}, r"17\.jpg in nan\.parquet .*finite"),
        ({"features": "twice.parquet"}, r"twice\.parquet has 2 rows of 0\.jpg"),
        ({"images": "empty"}, "no images in empty"),
        ({**features, "images": "empty"}, "either --images .* or --features"),
        ({**features, "encoder": "e.safetensors"}, "leave out encoder"),
        ({**features, "resize": 64, "crop": 64}, "leave out .*resize"),
        ({**features, "to": "out.xlsx"}, r"out\.xlsx.*\.csv or \.parquet"),
        ({**features, "to": "nan.parquet/out.csv"}, "--to .*nan.parquet .Not a directory"),
        ({**features, "save": "nan.parquet/c.safetensors"}, "--save .*nan.parquet .Not a directory"),
        ({**features, "classifier": "c.safetensors"}, "either --labels .* or --classifier"),
    ):
        with pytest.raises(ValueError, match=message):
            classify("labels.csv", **{"to": "out.csv", "save": "c.safetensors", **options})  # type: ignore
    with pytest.raises(ValueError, match="--save needs|needs --labels"):
        classify(features="features.parquet", classifier="c.safetensors", save="d.safetensors")
    assert sorted(folder.iterdir()) == before
