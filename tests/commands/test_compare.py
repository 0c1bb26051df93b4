"""cl compare: the same images for both encoders, copies between the splits, the table, what it refuses."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import cl
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


def test_both_encoders_see_the_same_images(data, tmp_path) -> None:
    encoders = [cl.load(data / name) for name in ("a.safetensors", "b.safetensors")]
    found = cl.compare(*encoders, train=data / "train", val=data / "val", k=3, to=tmp_path / "rows.csv")
    features, labels = {}, {}
    for split in ("train", "val"):
        files = sorted(data.glob(f"{split}/*/*.jpg"))
        features[split] = [encoder.embed(files).numpy() for encoder in encoders]
        labels[split] = np.array([file.parts[-2] for file in files])
    scores = correctness(features["train"], labels["train"], features["val"], labels["val"], k=3)
    expected = judge(scores)
    assert found.result == expected
    assert (found.train_images, found.val_images, found.classes, found.copies) == (16, 8, 2, 0)
    rows = read_csv(tmp_path / "rows.csv")
    assert [row["measure"] for row in rows] == [row.measure for row in expected.rows]
    assert float(rows[-1]["low"]) == expected.overall.low
    for encoder, column in zip(encoders, ("a", "b"), strict=True):
        alone = cl.evaluate(encoder, train=data / "train", val=data / "val", k=3)
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
    with pytest.raises(ValueError, match="all 16 validation images are also training images; give others"):
        cl.compare(*both, train=data / "train", val=tmp_path / "train")
    for file in (tmp_path / "train").glob("*/*.jpg"):
        shutil.copy(file, file.with_stem(f"{file.stem} (1)"))
    found = cl.compare(*both, train=tmp_path / "train", k=3)
    assert (found.copies, found.train_images + found.val_images) == (0, 32)
    assert "held out together with an equal file: 16 images" in capsys.readouterr().err


def test_the_command_ends_in_a_sentence_and_answers_mistakes(data, project, tmp_path) -> None:
    a, b, c = (data / f"{name}.safetensors" for name in "abc")
    train, val = data / "train", data / "val"
    sides = "--train", train, "--val", val
    said = run_cl("compare", a, a, *sides).stdout
    assert "cannot tell whether B is better than A: no difference on 8 images" in said
    assert "16 training images, 8 validation images, 2 classes" in said
    mistakes = {
        rf"encoder B \({c}\) gives all images the same features": [a, c, *sides],
        f"folders train and val.*--train {train} --val {val}": [a, b, "--train", data],
        "none of the 8 images": [a, b, "--train", train / "robin", "--val", val],
        "no file or folder": [a, b, "--train", data / "none", "--val", val],
        rf"encoder A \({a}\): no images in {tmp_path}": [a, b, "--train", tmp_path, "--val", val],
        "leave out --resize and --crop": [a, b, *sides, "--resize", 20, "--crop", 16],
        "must be a file that ends in .csv or .parquet": [a, b, *sides, "--to", "rows.txt"],
        "none.pt": [a, data / "none.pt", *sides],
    }
    assert_refused(project, "compare", mistakes)
