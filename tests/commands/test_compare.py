"""cl compare: the same images for both encoders, copies between the splits, the table, what it refuses."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import cl
from cl.commands import compare
from cl.commands.evaluate import across_values
from cl.commands.inputs.labelled import LabelledImages
from cl.commands.inputs.labels import Labels
from cl.features.correctness import correctness
from cl.runtime.tables import write_csv
from cl.runtime.tensor_files import save_tensors
from cl.statistics import judge
from tests.support.files import read_csv
from tests.support.pictures import picture_file
from tests.support.resnets import TRANSFORM, save_encoder
from tests.support.stages import assert_refused, run_cl


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    """Three encoders, one of them collapsed; 16 training and 8 validation images of two classes."""
    root = tmp_path_factory.mktemp("compare")
    save_encoder(root / "a.safetensors")
    save_encoder(root / "b.safetensors", seed=1)
    zero = {name: torch.zeros_like(tensor) for name, tensor in save_encoder(root / "c.safetensors").items()}
    zero |= {name: tensor + 1 for name, tensor in zero.items() if name.endswith(("running_var", "bias"))}
    save_tensors(zero, root / "c.safetensors", {"transform": TRANSFORM.model_dump_json()})
    for split, count in (("train", 8), ("val", 4)):
        for label, name in enumerate(("robin", "wren")):
            for number in range(count):
                seed = 100 * label + number + (50 if split == "val" else 0)
                picture_file(root / split / name / f"{number}.jpg", seed, (24, 20))
    return root


def test_both_encoders_see_the_same_images(data, tmp_path, capsys) -> None:
    encoders = [cl.load(data / name) for name in ("a.safetensors", "b.safetensors")]
    found = cl.compare(*encoders, train=data / "train", val=data / "val", k=3, to=tmp_path / "rows.csv")
    assert re.findall("warning: encoder (.) was never trained", capsys.readouterr().err) == ["A", "B"]
    features, labels = {}, {}
    for split in ("train", "val"):
        files = sorted(data.glob(f"{split}/*/*.jpg"))
        features[split] = [encoder.embed(files).numpy() for encoder in encoders]
        labels[split] = np.array([file.parts[-2] for file in files])
    smaller = cl.load(data / "a.safetensors")
    smaller.transform = smaller.transform.model_copy(update={"crop": 12})
    cl.compare(encoders[0], smaller, train=data / "train", val=data / "val", k=3)
    assert re.search("crops have [0-9]+ px for A, 12 px for B, which", capsys.readouterr().err)
    scores = correctness(features["train"], labels["train"], features["val"], labels["val"], k=3)
    expected = judge(scores)
    assert found.result == expected
    assert (found.train_images, found.val_images, found.classes, found.copies) == (16, 8, 2, 0)
    rows = read_csv(tmp_path / "rows.csv")
    assert [row["measure"] for row in rows] == [row.measure for row in expected.rows]
    assert float(rows[-1]["low"]) == expected.overall.low
    for encoder, column in zip(encoders, ("a", "b"), strict=True):
        alone = cl.evaluate(encoder, train=data / "train", val=data / "val", k=3)
        assert "warning: the encoder was never trained" in capsys.readouterr().err
        assert [getattr(row, column) for row in found.result.rows[:2]] == [alone.knn, alone.linear]


def test_copies_of_training_images_are_left_out_and_groups_are_kept(data, tmp_path, capsys) -> None:
    shutil.copytree(data / "train", tmp_path / "train")
    shutil.copytree(data / "val", tmp_path / "val")
    shutil.copy(data / "train/robin/3.jpg", tmp_path / "val/robin/copy.jpg")
    both = data / "a.safetensors", data / "b.safetensors"
    found = cl.compare(*both, train=tmp_path / "train", val=tmp_path / "val", k=3)
    assert (found.copies, found.val_images) == (1, 8)
    assert found.result == cl.compare(*both, train=data / "train", val=data / "val", k=3).result
    assert cl.evaluate(both[0], train=tmp_path / "train", val=tmp_path / "val", k=3).val_images == 8
    assert "that are also training images: 1" in capsys.readouterr().err
    rows = [
        (file.relative_to(tmp_path), file.parts[-2], f"{file.parts[-3]} {int(file.stem) % 2}")
        for file in sorted(tmp_path.glob("*/*/[0-9]*.jpg"))
    ]
    write_csv(tmp_path / "labels.csv", ["path", "label", "group"], rows)
    labels, sides = tmp_path / "labels.csv", {"train": tmp_path / "train", "val": tmp_path / "val"}
    grouped = cl.compare(*both, **sides, labels=labels, k=3)
    assert (grouped.result.groups, grouped.result.images) == (2, 8)
    assert "the images are of 2 groups" in grouped.result.sentence()
    with pytest.raises(ValueError, match=r"all validation images \(16\) are also training images"):
        cl.compare(*both, train=data / "train", val=tmp_path / "train")
    for file in (tmp_path / "train").glob("*/*.jpg"):
        shutil.copy(file, file.with_stem(f"{file.stem} (1)"))
    found = cl.compare(*both, train=tmp_path / "train", k=3)
    assert (found.copies, found.train_images + found.val_images) == (0, 32)
    assert "held out together with an equal file: 16 images" in capsys.readouterr().err


def test_classes_are_found_across_sites_by_both_encoders_in_either_order(data, tmp_path) -> None:
    """As `cl.evaluate` finds them; the worst site has the lowest mean of both, and a wider interval."""
    files = sorted(data.glob("*/*/*.jpg"))
    rows = [(file, file.parts[-2], "abb"[number % 3]) for number, file in enumerate(files)]
    write_csv(tmp_path / "labels.csv", ["path", "label", "site"], rows)
    encoders = [data / "a.safetensors", data / "b.safetensors"]
    given = {"train": data / "train", "val": data / "val", "labels": tmp_path / "labels.csv", "k": 3}
    found, swapped = (cl.compare(*pair, **given, across="site") for pair in (encoders, encoders[::-1]))
    assert found.result == cl.compare(*encoders, **given).result
    for row, mirrored in zip(found.rows, swapped.rows, strict=True):
        assert (row.measure, row.a, row.b) == (mirrored.measure, mirrored.b, mirrored.a)
        assert (row.low, row.high) == (-mirrored.high, -mirrored.low)
    by_measure = {row.measure: row for row in found.columns}
    for encoder, column in zip(encoders, "ab", strict=True):
        alone = {row.measure: row.percent for row in cl.evaluate(encoder, **given, across="site").measures}
        for measure in ("across site: kNN", "across site: logistic regression"):
            assert getattr(by_measure[measure], column) == pytest.approx(alone[measure])
    (worst,) = (name for name in by_measure if re.match(r"worst site \([ab]\): kNN", name))
    assert worst in run_cl("compare", *encoders, "--across", "site", *words(given)).stdout


def words(given: dict[str, object]) -> list[object]:
    return [word for name, value in given.items() for word in (f"--{name}", value)]


def test_the_interval_of_the_worst_of_several_sites_allows_for_the_choice(tmp_path) -> None:
    """Bonferroni's; 60 training and 60 validation images of four sites."""
    names = [f"{number}.jpg" for number in range(120)]
    rows = [(name, "x", f"s{number % 4}") for number, name in enumerate(names)]
    write_csv(tmp_path / "labels.csv", ["path", "label", "site"], rows)
    labels = np.array(["robin", "wren", "wren"])[np.arange(120) % 3]
    features = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    features[:, 0] += labels == "wren"
    unknown = np.full(120, ""), np.arange(120)
    files, both = [tmp_path / name for name in names], [features[:, :2], features[:, 2:]]
    images = LabelledImages(names, files, both, features[:, 4:], labels, *unknown)
    table = Labels(tmp_path / "labels.csv", others={"--across": "site"})
    bank, queries = images.at(np.arange(60)), images.at(np.arange(60, 120))
    worst = [*compare._across("site", table, bank, queries, 3)][1]
    (_, right, *_), (measure, _, at, _), *_ = across_values("site", table, bank, queries, 3)
    sites = np.array([row[2] for row in rows[60:]])
    means = {site: right[sites == site].mean() for site in sites}
    assert worst.measure == measure == f"worst site ({min(means, key=means.__getitem__)}): kNN"
    np.testing.assert_array_equal(at, sites == min(means, key=means.__getitem__))
    scores = {"kNN": 100 * right[at]}
    corrected, uncorrected = (judge(scores, tail=0.025 / number).overall for number in (4, 1))
    assert (worst.low, worst.high) == (corrected.low, corrected.high)
    assert corrected.low < uncorrected.low
    for part in (bank, queries):
        part.labels[sites == "s1"] = "owl"
    (*_, counts, _), (*_, values), *_ = across_values("site", table, bank, queries, 3)
    np.testing.assert_array_equal(counts, sites != "s1", "no other site has owls")
    assert values == 3
    for part in (bank, queries):
        part.labels[np.flatnonzero(sites == "s1")[0]] = "wren"
    (*_, counts, _), (worst, _, of_worst, values), *_ = across_values("site", table, bank, queries, 3)
    assert counts.sum() == 46 and values == 4
    assert "(s1)" not in worst or of_worst.sum() == 1
    for part in (bank, queries):
        part.labels[:] = sites
    with pytest.raises(ValueError, match="--across site: no validation image has a class of"):
        next(across_values("site", table, bank, queries, 3))


def test_the_command_ends_in_a_sentence_and_answers_mistakes(data, project, tmp_path) -> None:
    a, b, c = (data / f"{name}.safetensors" for name in "abc")
    train, val = data / "train", data / "val"
    sides = "--train", train, "--val", val
    said = run_cl("compare", a, a, *sides).stdout
    assert "cannot tell whether B is better than A: no difference on 8 images" in said
    assert "16 training images, 8 validation images, 2 classes" in said
    mistakes = {
        rf"encoder B \({c}\) gives all images the same features": [a, c, *sides],
        rf"encoder A \({a}\): no images in {tmp_path}": [a, b, "--train", tmp_path, "--val", val],
        "leave out --resize and --crop": [a, b, *sides, "--resize", 20, "--crop", 16],
        "must be a file that ends in .csv or .parquet": [a, b, *sides, "--to", "rows.txt"],
        "none.pt": [a, data / "none.pt", *sides],
    }
    assert_refused(project, "compare", mistakes)
