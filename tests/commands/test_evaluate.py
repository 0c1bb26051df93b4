"""Accuracies of frozen features; classes from folders and from tables."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image as Picture
from torch import nn

import cl
from cl.encoders.encoder import Encoder
from cl.features.extraction import Pixels
from cl.runtime.tables import write_csv
from cl.statistics import interval
from tests.support.files import read_csv
from tests.support.pictures import picture_file
from tests.support.resnets import save_encoder
from tests.support.stages import assert_refused, run_cl


@pytest.fixture(scope="module")
def data(tmp_path_factory):  # type: ignore[no-untyped-def]
    """An encoder; 24 training and 12 validation images of two classes, and one more without a class."""
    root = tmp_path_factory.mktemp("evaluate")
    save_encoder(root / "encoder.safetensors")
    for split, count in (("train", 12), ("val", 6)):
        for label, name in enumerate(("robin", "vo\u0308gel")):
            for number in range(count):
                seed = 100 * label + number + (50 if split == "val" else 0)
                picture_file(root / split / name / "2024" / f"{number}.jpg", seed, (24, 20))
        picture_file(root / split / "without class.jpg")
    return root


def write_table(path: Path, images: Iterable[Path], form: str = "NFC") -> Path:
    """A table of these images, from its folder, and of one that does not exist."""
    rows = [(normalize(form, str(image.relative_to(path.parent))), "", image.parts[-3]) for image in images]
    write_csv(path, ["file", "Species", "class"], [*rows, ("x.jpg", "", "robin")])
    return path


def test_accuracies_are_those_of_the_features(data, tmp_path) -> None:
    encoder = cl.load(data / "encoder.safetensors")
    features, labels = {}, {}
    for split in ("train", "val"):
        paths = sorted(data.glob(f"{split}/*/*/*.jpg"))
        features[split] = encoder.embed(paths)
        labels[split] = [path.parts[-3] for path in paths]
    found = cl.evaluate(
        encoder, train=data / "train", val=data / "val", k=1, to=tmp_path / "accuracies.parquet"
    )
    rows = features["train"], labels["train"], features["val"], labels["val"]
    assert (found.knn, found.linear) == (cl.knn_accuracy(*rows, k=1), cl.linear_probe(*rows))
    assert (found.majority, found.train_images, found.val_images, found.classes) == (50, 24, 12, 2)
    knn, _, pixels, majority = found.measures
    assert knn[:2] == ("kNN, k = 1", found.knn)
    train, val = (
        Pixels()(torch.stack([encoder.transform(path) for path in sorted(data.glob(f"{split}/*/*/*.jpg"))]))
        for split in ("train", "val")
    )
    assert pixels.percent == cl.knn_accuracy(train, labels["train"], val, labels["val"], k=1)
    assert majority[1:] == pytest.approx((50, 25.4, 74.6), abs=0.1)  # Wilson's for 6 of 12
    written = pq.read_table(tmp_path / "accuracies.parquet").to_pylist()
    assert written == [row._asdict() for row in found.measures]


def test_a_column_is_predicted_and_classes_are_found_across_its_values(data, tmp_path, capsys) -> None:
    """Of the validation images of each site, from the training images of the other sites."""
    paths = {split: sorted(data.glob(f"{split}/*/*/*.jpg")) for split in ("train", "val")}
    sites = {path: "abcc"[n % 4] for images in paths.values() for n, path in enumerate(images)}
    unknown = paths["train"][0], paths["val"][1]
    rows = [(path, path.parts[-3], site if path not in unknown else "") for path, site in sites.items()]
    known = {split: [path for path in images if path not in unknown] for split, images in paths.items()}
    write_csv(tmp_path / "labels.csv", ["path", "label", "site"], rows)
    encoder, table = cl.load(data / "encoder.safetensors"), tmp_path / "labels.csv"
    given = {"train": data / "train", "val": data / "val", "labels": table, "k": 1}
    found = {
        row.measure: row for row in cl.evaluate(encoder, predict="site", across="site", **given).measures
    }
    features = {path: encoder.embed([path])[0] for path in sites}
    classes = {path: path.parts[-3] for path in sites}

    def accuracy(bank: list[Path], queries: list[Path], truth: dict) -> float:
        sides = [[of[path] for path in side] for side in (bank, queries) for of in (features, truth)]
        return cl.knn_accuracy(*map(np.array, sides), k=1)

    assert found["site: kNN"].percent == pytest.approx(accuracy(known["train"], known["val"], sites))
    assert "count as errors" not in capsys.readouterr().err
    across = [
        accuracy(
            [path for path in known["train"] if sites[path] != site],
            [path for path in known["val"] if sites[path] == site],
            classes,
        )
        for site in "abc"
    ]
    assert found["across site: kNN"].percent == pytest.approx(np.average(across, weights=[3, 2, 6]))
    (worst,) = (row for name, row in found.items() if re.match(r"worst site \([abc]\): kNN", name))
    assert worst.percent == pytest.approx(min(across))
    images = {"a": 3, "b": 2, "c": 6}[re.findall(r"\((.)\)", worst.measure)[0]]
    alone, chosen = (interval(worst.percent, images, level=1 - 0.05 / number) for number in (1, 3))
    assert (worst.low, worst.high) == (chosen.low, chosen.high) != (alone.low, alone.high)
    write_csv(tmp_path / "labels.csv", ["path", "label", "site"], [(*row[:2], row[1]) for row in rows])
    with pytest.raises(ValueError, match="--across site: without robin, .* fewer than two classes"):
        cl.evaluate(encoder, across="site", **given)
    cells = [(*row[:2], row[2] if row[0] in paths["train"] else f"not {row[2]}") for row in rows]
    write_csv(tmp_path / "labels.csv", ["path", "label", "site"], cells)
    cl.evaluate(encoder, predict="site", **given)
    assert (
        "site: images of values without a training image, which count as errors: 12"
        in capsys.readouterr().err
    )
    for train, val, message in (
        ("abc", "", "validation images have none"),
        ("a", "a", "fewer than two values"),
    ):
        kept = {"train": train, "val": val}
        cells = [(*row[:2], row[2] if row[2] in [*kept[row[0].parts[-4]]] else "") for row in rows]
        write_csv(tmp_path / "labels.csv", ["path", "label", "site"], cells)
        with pytest.raises(ValueError, match=f"--predict site: the .*{message}"):
            cl.evaluate(encoder, predict="site", **given)
    with pytest.raises(ValueError, match="--predict=sight, but .* choose"):
        cl.evaluate(encoder, predict="sight", **given)
    with pytest.raises(ValueError, match="--across site names a column of the table"):
        cl.evaluate(encoder, train=data / "train", across="site")


def test_classes_come_from_folders_or_from_a_table(data, capsys) -> None:
    options = {"encoder": data / "encoder.safetensors", "k": 5}
    expected = cl.evaluate(train=data / "train", val=data / "val", **options)
    assert "left out 1 image without a label" in capsys.readouterr().err
    for split, group in (("train", "1"), ("val", "1.0")):
        rows = [(path.relative_to(data), "robin", group) for path in data.glob(f"{split}/*/*/*.jpg")]
        write_csv(data / f"{split}.csv", ["path", "species", "group"], rows)
    with pytest.raises(ValueError, match="all training images are of the class '2024'"):
        cl.evaluate(train=data / "train.csv", val=data / "val.csv", **options)
    said = capsys.readouterr().err
    assert "ignored: species, group; without a column label, the folders of the images are" in said
    for split, group in (("train", "1"), ("val", "1.0")):
        rows = [(path.relative_to(data), path.parts[-3], group) for path in data.glob(f"{split}/*/*/*.jpg")]
        write_csv(data / f"{split}.csv", ["path", "label", "group"], rows)
    cl.evaluate(train=data / "train.csv", val=data / "val.csv", **options)
    assert "'1' and '1.0' look alike: they are two groups" in capsys.readouterr().err
    table = write_table(data / "labels.csv", data.glob("*/*/*/*.jpg"))
    assert cl.evaluate(train=data / "train", val=data / "val", labels=table, **options) == expected
    assert "labels.csv: left out 1 row, such as x.jpg: no such image" in capsys.readouterr().err
    train, val = (
        write_table(data / f"{split}.csv", data.glob(f"{split}/*/*/*.jpg"), "NFD")
        for split in ("train", "val")
    )
    assert cl.evaluate(train=[train], val=[val], **options) == expected
    assert "train.csv: columns file as path, class as label; ignored: Species" in capsys.readouterr().err
    capsys.readouterr()
    files = {split: sorted(data.glob(f"{split}/*/*/*.jpg")) for split in ("train", "val")}
    assert cl.evaluate(**files, labels=table, **options) == expected
    assert re.findall(r"embed: (\d+) images", capsys.readouterr().err) == ["24", "12"], "together"
    by_name = write_table(data / "train/labels.csv", data.glob("train/*/*/*.jpg"))
    with pytest.raises(ValueError, match="none of the 6 images in [^(]*robin has a label in .*labels.csv;"):
        cl.evaluate(train=data / "train", val=[data / "val/robin"], labels=by_name, **options)
    with pytest.raises(ValueError, match="is the name of .*train/.* and of .*val/"):
        cl.evaluate(train=data / "train", val=data / "val", labels=by_name, **options)
    write_csv(data / "others.csv", ["path", "label"], [("train/none.jpg", "robin")])
    with pytest.raises(ValueError, match="paths, such as train/none.jpg, must start from its folder"):
        cl.evaluate(train=data / "train", labels=data / "others.csv", **options)
    with pytest.raises(ValueError, match="all training images are of the class 'robin', expected at least"):
        cl.evaluate(train=data / "train/robin/2024", val=data / "val", labels=table, **options)


def test_images_of_a_group_and_equal_files_count_once(data, tmp_path, capsys) -> None:
    sides, encoder = {"train": data / "train", "val": data / "val"}, cl.load(data / "encoder.safetensors")
    alone = cl.evaluate(encoder, **sides, k=3)
    shutil.copytree(data / "val", tmp_path / "val")
    for file in sorted((tmp_path / "val").glob("*/*/*.jpg")):
        for number in range(9):
            shutil.copy(file, file.with_stem(f"{file.stem} copy {number}"))
    copied = cl.evaluate(encoder, train=data / "train", val=tmp_path / "val", k=3)
    assert (copied.val_images, copied.knn) == (120, alone.knn)
    assert "burst" not in capsys.readouterr().err
    files = [*data.glob("*/*/*/*.jpg")]
    rows = [
        (file.relative_to(data), file.parts[-3], f"{file.parts[-4]} {int(file.stem) // 2}") for file in files
    ]
    write_csv(data / "groups.csv", ["path", "label", "group"], rows)
    grouped = cl.evaluate(encoder, **sides, labels=data / "groups.csv", k=3)
    for row, *others in zip(alone.measures, copied.measures, grouped.measures, strict=True):
        for other in others:
            assert other.percent == row.percent
            assert other.high - other.low > row.high - row.low
    write_csv(data / "groups.csv", ["path", "label", "group"], [(*row[:2], row[2][:3]) for row in rows])
    words = ("--train", sides["train"], "--val", sides["val"], "--labels", data / "groups.csv", "--k", 3)
    of = ("--encoder", data / "encoder.safetensors", "--to", tmp_path / "rows.csv")
    assert run_cl("evaluate", *words, *of).stdout.count("one group") == 4
    assert {(row["low"], row["high"]) for row in read_csv(tmp_path / "rows.csv")} == {("", "")}


@pytest.fixture
def bursts(tmp_path) -> Path:
    """Twenty bursts of three changed copies each, of two classes."""
    rng = np.random.default_rng(0)
    for burst in range(20):
        scene = rng.integers(0, 256, (5, 6, 3))
        for number in range(3):
            pixels = (scene + rng.integers(-8, 8, scene.shape)).clip(0, 255).astype(np.uint8)
            folder = tmp_path / "bird" / ("robin", "wren")[burst % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Picture.fromarray(pixels).resize((24, 20)).save(folder / f"{burst:02}_{number}.png")
    return tmp_path / "bird"


class Unrelated(nn.Module):
    """Random features of each image, however similar the pixels of two are."""

    fc_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seeds = [int(1e5 * float(image.double().sum())) for image in images]
        return torch.stack([torch.randn(8, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def test_features_find_bursts_not_the_pixels_beside_them(data, bursts, capsys) -> None:
    encoder = cl.load(data / "encoder.safetensors")
    for network, found in ((encoder.network, True), (Unrelated(), False)):
        cl.evaluate(Encoder(network, encoder.transform, "test"), train=bursts, k=1)
        assert ("images are in about" in capsys.readouterr().err) == found


def test_a_burst_stays_on_one_side_and_one_group_cannot_be_held_out(data, bursts, tmp_path, capsys) -> None:
    options = {"encoder": data / "encoder.safetensors", "k": 1}
    found, alone = (cl.evaluate(train=bursts, ungrouped=each, **options) for each in (False, True))
    assert re.search(r"[56]\d of 60 images are in about \d+ bursts", capsys.readouterr().err)
    assert found.knn < 80 < alone.knn
    knn, alone_at = found.measures[0], interval(found.knn, found.val_images)
    assert knn.high - knn.low > alone_at.high - alone_at.low
    rows = [
        (file.relative_to(tmp_path), file.parts[-2], "one") for file in sorted(tmp_path.glob("*/*/*.png"))
    ]
    table = {"labels": tmp_path / "labels.csv"}
    write_csv(table["labels"], ["path", "label", "group"], [rows[0], *((*row[:2], "") for row in rows[1:])])
    cl.evaluate(train=bursts, **table, **options)
    assert re.search(r"[56]\d of 59 images are in about \d+ bursts", capsys.readouterr().err)
    write_csv(table["labels"], ["path", "label", "group"], rows)
    with pytest.raises(ValueError, match=r"60 images .1 independent. leaves 60 training and 0"):
        cl.evaluate(train=bursts, **table, **options)


def test_classes_that_training_lacks_are_named(data, tmp_path, capsys) -> None:
    """Spelled with another case or missing; differently encoded accents are the same class."""
    for split, names in {"train": ("Robin", "v\u00f6gel"), "val": ("robin", "vo\u0308gel", "wren")}.items():
        for label, name in enumerate(names):
            shutil.copytree(data / split / ("robin", "vo\u0308gel")[label % 2], tmp_path / split / name)
    found = cl.evaluate(
        data / "encoder.safetensors", train=tmp_path / "train", val=tmp_path / "val", k=3, holdout=0.5
    )
    said = capsys.readouterr().err
    assert found.classes == 4
    assert "'Robin' and 'robin'" in said
    assert "classes without a training image, such as robin, which count as errors: 12" in said


def test_a_share_is_held_out_and_every_class_keeps_a_training_image(data, tmp_path, capsys) -> None:
    quarter = cl.evaluate(data / "encoder.safetensors", train=data / "train", holdout=0.25, k=3)
    assert quarter.val_images >= 5
    assert quarter.train_images + quarter.val_images == 24
    for number, file in enumerate(sorted(data.glob("*/*/*/*.jpg"))):
        (tmp_path / f"{number // 3}").mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / f"{number // 3}/{number}.jpg")
    found = cl.evaluate(data / "encoder.safetensors", train=tmp_path, holdout=0.9, k=3)
    assert (found.classes, found.train_images) == (12, 12)
    assert "without a training image" not in capsys.readouterr().err


def test_the_command_prints_intervals_and_answers_mistakes(data, project) -> None:
    of, train, val = ("--encoder", data / "encoder.safetensors"), data / "train", data / "val"
    printed = run_cl("evaluate", *of, "--train", train, "--val", val, "--k", 3).stdout
    assert "24 training images, 12 validation images, 2 classes" in printed
    assert re.search(r"most frequent class +50\.0 % \[25\.4, 74\.6\]", printed)
    mistakes = {
        "at least 50 labelled training images, found 24": ["--train", train, "--val", val, "--k", 50],
        f"folders train and val.*--train {train} --val {val}": ["--train", data, "--val", val],
        "none of the 12 images": ["--train", train / "robin/2024", "--val", val],
        "no file or folder": ["--train", data / "none", "--val", val],
        "must be a file that ends in .csv or .parquet": ["--train", train, "--to", "accuracies.txt"],
        "holdout=2.0, expected a share between 0 and 1": ["--train", train, "--holdout", 2],
    }
    assert_refused(project, "evaluate", {says: [*of, *words] for says, words in mistakes.items()})
