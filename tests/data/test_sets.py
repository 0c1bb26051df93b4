"""Shards, the reader and its order."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import EvalSet, TrainSet
from cl.data.views import centre
from cl.sources import Source, imagenet100, photos
from cl.sources._shared import photographs
from cl.sources._shared.class_folders import class_folders
from cl.sources.folder import Config as Folder
from tests.support.tiny import write_shards


def test_photos_are_twenty_classes_from_disjoint_bands(params, tmp_path) -> None:
    splits = photos.splits(params.dataset, tmp_path)
    assert len(splits.classes) == 20
    assert [len(splits.train), len(splits.val)] == [20 * 6, 20 * 3]
    with Picture.open(photographs.files()["china"]) as picture:
        train, val = photographs.bands(picture).values()
        assert train.width + val.width == picture.width
        assert train.height == val.height == picture.height


def picture_file(path: Path, mode: str = "RGB", form: str = "JPEG") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Picture.new(mode, (20, 30), 100 if mode in ("L", "I;16") else None).save(path, form)
    return path


def tree(root: Path) -> Path:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            for number in range(3):
                picture_file(root / split / name / f"{number}.jpg")
    return root


def test_folders_say_what_is_missing(tmp_path, params) -> None:
    common = params.dataset.model_dump(include={*Source.model_fields} - {"kind"})
    from cl.sources import folder

    with pytest.raises(
        ValueError, match=r"no folder .*own/train; put the images at .*own/\{train,val\}/<class>/<image>"
    ):
        folder.splits(Folder(kind="folder", name="own", **common), tmp_path)
    tree(tmp_path / "imagenet")
    (tmp_path / "list.txt").write_text("cat\nbird\n")
    (tmp_path / "flat" / "train").mkdir(parents=True)
    (tmp_path / "flat" / "val").mkdir()
    picture_file(tmp_path / "flat" / "train" / "0.jpg")
    with pytest.raises(ValueError, match="no class folders in .*flat/train"):
        folder.splits(Folder(kind="folder", name="flat", **common), tmp_path)
    with pytest.raises(ValueError, match="lacks 1 of 2 classes, the first is bird"):
        imagenet100.splits(
            imagenet100.Config(kind="imagenet100", list=str(tmp_path / "list.txt"), **common), tmp_path
        )
    (tmp_path / "list.txt").write_text("dog\ncat\n")
    found = imagenet100.splits(
        imagenet100.Config(kind="imagenet100", list=str(tmp_path / "list.txt"), **common), tmp_path
    )
    assert found.classes == ["dog", "cat"]
    assert found.train[0].label == 0
    assert found.train[0].key == "dog/0"
    (tmp_path / "own" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "own" / "val" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="contains no images"):
        folder.splits(Folder(kind="folder", name="own", **common), tmp_path)


def test_imagenet100_is_the_list_of_100_classes() -> None:
    names = (Path(__file__).parents[2] / "data" / "imagenet100.txt").read_text().split()
    assert len(set(names)) == 100
    assert (names[0], names[-1]) == ("n02869837", "n02090622")


def test_a_changed_shard_is_noticed(shard_folder, tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shard_folder, copy)
    path = copy / "train-000001.tar"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ValueError, match=r"train-000001.tar has \d+ bytes, its manifest says"):
        Reader(copy, "train")


@pytest.mark.parametrize("change", ["cut", "written", "replaced"])
@pytest.mark.parametrize("opened", [False, True])
def test_a_shard_that_changes_while_it_is_read_is_noticed(shard_folder, tmp_path, change, opened) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shard_folder, copy)
    reader, path = Reader(copy, "train"), copy / "train-000001.tar"
    before = bytes(reader.read(60)) if opened else b""
    if change == "cut":
        os.truncate(path, 1000)
    elif change == "written":
        with path.open("r+b") as file:
            file.seek(600)
            file.write(b"other")
        os.utime(path, ns=(1, 1))  # whatever the clock's resolution
    else:
        shutil.copy(path, tmp_path / "new")
        os.replace(tmp_path / "new", path)
    if change == "replaced" and opened:
        assert bytes(reader.read(60)) == before, "the file that was opened is still there"
    else:
        with pytest.raises(ValueError, match=r"train-000001.tar was changed while it was read: start again"):
            reader.read(60)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_number_of_ranks_and_workers_sees_the_same_batches(
    shard_folder, params, ranks, workers
) -> None:
    reader = Reader(shard_folder, "train")
    views = list(params.views.values())
    reference = TrainSet(reader, views, Plan(len(reader), 36, 7))
    assert reference.plan.steps_per_epoch == 3
    shares = [
        TrainSet(reader, views, Plan(len(reader), 36, 7, rank, ranks)).batches(0, 6, workers)
        for rank in range(ranks)
    ]
    seen = []
    for step, parts in enumerate(zip(*shares, strict=True)):
        whole = reference[step]
        assert {len(part.labels) for part in parts} == {36 // ranks}
        assert torch.equal(torch.cat([part.positions for part in parts]), whole.positions)
        assert torch.equal(
            torch.cat([part.labels for part in parts]), torch.from_numpy(reader.labels)[whole.positions]
        )
        assert torch.equal(torch.cat([part.colour_params for part in parts], 1), whole.colour_params)
        for view, images in enumerate(whole.images):
            assert torch.equal(torch.cat([part.images[view] for part in parts]), images)
        seen.append(whole.positions)
    for epoch in (seen[:3], seen[3:]):
        assert len(torch.cat(epoch).unique()) == 108


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumed_at_any_step_sees_the_same_batches(shard_folder, params, workers) -> None:
    reader = Reader(shard_folder, "train")
    data = TrainSet(reader, list(params.views.values()), Plan(len(reader), 32, 7))
    whole = [data[step] for step in range(6)]
    for start in range(6):
        for expected, found in zip(whole[start:], data.batches(start, 6, workers), strict=True):
            assert torch.equal(expected.positions, found.positions)
            assert all(torch.equal(x, y) for x, y in zip(expected.images, found.images, strict=True))
            assert torch.equal(expected.colour_params, found.colour_params)


def test_views_differ_between_epochs_and_views(shard_folder, params) -> None:
    reader = Reader(shard_folder, "train")
    data = TrainSet(reader, list(params.views.values()), Plan(len(reader), 120, 7))
    first, second = data[0], data[1]
    a, b = first.positions.argsort(), second.positions.argsort()
    assert not torch.equal(first.images[0][a], second.images[0][b])
    assert not torch.equal(first.images[0], first.images[1])
    assert not torch.equal(first.colour_params[0], first.colour_params[1])


def test_evaluation_reads_every_sample_once(shard_folder) -> None:
    reader = Reader(shard_folder, "val")
    data = EvalSet(reader, resize=32, crop=32)
    expected = np.stack([centre(reader.pixels(position), 32, 32) for position in range(60)])
    for batch_size, workers in ((25, 2), (60, 1), (7, 0), (100, 2)):
        images = torch.cat([block.clone() for block in data.batches(batch_size, workers)])
        assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), expected)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path) -> None:
    root = tree(tmp_path / "own")
    whole = (root / "train" / "cat" / "0.jpg").read_bytes()
    (root / "train" / "cat" / "half.jpg").write_bytes(whole[:-10])
    write_shards(class_folders(root), tmp_path / "shards", 4, verify=False)
    reader = Reader(tmp_path / "shards", "train")
    position = [key.decode() for key in reader.keys].index("cat/half")
    with pytest.raises(
        ValueError, match=r"^cat/half cannot be decoded \(.*\): prepare again with dataset.verify=true$"
    ):
        reader.pixels(position)
