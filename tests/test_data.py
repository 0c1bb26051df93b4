"""Shards, the reader and its order."""

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from conftest import write_shards
from PIL import Image as Picture

from cl.order import Plan
from cl.reader import EvalSet, TrainSet
from cl.shards import Reader
from cl.sources import Source, imagenet100, photos
from cl.sources.folder import Config as Folder
from cl.sources.folder import class_folders
from cl.views import centre


def digest(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_photos_are_twenty_classes_from_disjoint_bands(params, tmp_path) -> None:
    splits = photos.splits(params.dataset, tmp_path)
    assert len(splits.classes) == 20
    assert [len(splits.train), len(splits.val)] == [20 * 6, 20 * 3]
    with Picture.open(photos.photographs()["china"]) as picture:
        train, val = photos.bands(picture).values()
        assert train.width + val.width == picture.width
        assert train.height == val.height == picture.height


def test_two_prepares_give_the_same_bytes(params, tmp_path) -> None:
    folders = []
    for name in ("a", "b"):
        splits = photos.splits(params.dataset, tmp_path / name)
        write_shards(splits, tmp_path / name / "shards", 50)
        folders.append(digest(tmp_path / name / "shards"))
    assert folders[0] == folders[1]
    assert sorted(folders[0]) == [
        "manifest.json",
        *(f"train-{i:06d}.tar" for i in range(3)),
        "train.npy",
        "train_keys.npy",
        *(f"val-{i:06d}.tar" for i in range(2)),
        "val.npy",
        "val_keys.npy",
    ]


def test_the_webdataset_library_reads_the_shards(shard_folder) -> None:
    urls = sorted(str(p) for p in shard_folder.glob("train-*.tar"))
    dataset = webdataset.WebDataset(urls, shardshuffle=False).decode("pil")
    reader = Reader(shard_folder, "train")
    samples = list(dataset)
    assert len(samples) == len(reader) == 120
    for position, sample in enumerate(samples):
        assert sample["__key__"].encode() == reader.keys[position]
        assert sample["cls"] == reader.labels[position]
        assert np.array_equal(np.asarray(sample["jpg"]), reader.pixels(position))


def test_jpegs_are_copied_byte_by_byte(shard_folder) -> None:
    reader = Reader(shard_folder, "train")
    raw = next((shard_folder.parent / "raw" / "photos").iterdir())
    for position in (0, 57, 119):
        assert reader.read(position) == (raw / "train" / (reader.keys[position].decode() + ".jpg")).read_bytes()


def test_manifest_names_every_shard_with_its_hash(shard_folder) -> None:
    manifest = json.loads((shard_folder / "manifest.json").read_text())
    assert manifest["splits"]["train"]["images"] == 120
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            content = (shard_folder / shard["name"]).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["bytes"], shard["sha256"])


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


def test_bad_images_are_listed_and_odd_ones_read(tmp_path) -> None:
    root = tree(tmp_path / "own")
    cat = root / "train" / "cat"
    (cat / "empty.jpg").write_bytes(b"")
    (cat / "text.jpg").write_text("no image")
    whole = io.BytesIO()
    Picture.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(whole, "JPEG")
    (cat / "truncated.jpg").write_bytes(whole.getvalue()[:500])
    picture_file(cat / "cmyk.jpg", "CMYK")
    Picture.fromarray(np.full((20, 30), 40_000, np.uint16)).save(cat / "sixteen.png")
    Picture.fromarray(np.full((20, 30), 0.5, np.float32)).save(cat / "float.tif")
    first, second = (Picture.new("RGB", (20, 30), colour) for colour in ("red", "blue"))
    first.save(cat / "phone.jpg", "MPO", save_all=True, append_images=[second])
    (cat / "nowhere.jpg").symlink_to("nothing")
    picture_file(cat / "a_png.JPEG", "RGB", "PNG")
    manifest = write_shards(class_folders(root), tmp_path / "shards", 4)
    assert set(manifest.splits["train"].skipped) == {
        f"cat/{name}" for name in ("empty", "text", "truncated", "float", "nowhere")
    }
    assert manifest.splits["train"].images == 6 + 4
    reader = Reader(tmp_path / "shards", "train")
    assert {reader.pixels(p).shape[2] for p in range(len(reader))} == {3}
    keys = [key.decode() for key in reader.keys]
    assert np.unique(reader.pixels(keys.index("cat/sixteen"))).tolist() == [40_000 // 256]
    assert reader.pixels(keys.index("cat/phone"))[:, :, 0].min() > 250
    names = [m.name for p in (tmp_path / "shards").glob("train*.tar") for m in tarfile.open(p)]
    assert "cat/a_png.png" in names


def test_a_class_without_a_readable_image_is_refused(tmp_path) -> None:
    root = tree(tmp_path / "own")
    for file in (root / "val" / "dog").iterdir():
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"class dog has no readable image in val \(dog/\d: ValueError: the file is empty"):
        write_shards(class_folders(root), tmp_path / "shards", 4)


def test_same_names_are_refused(tmp_path) -> None:
    root = tree(tmp_path / "own")
    picture_file(root / "train" / "cat" / "0.png", form="PNG")
    with pytest.raises(ValueError, match="have the same name 'cat/0' without extension: rename one"):
        write_shards(class_folders(root), tmp_path / "shards", 4)


def test_folders_say_what_is_missing(tmp_path, params) -> None:
    common = params.dataset.model_dump(include={*Source.model_fields} - {"kind"})
    from cl.sources import folder

    with pytest.raises(ValueError, match=r"no folder .*own/train: put the images at .*own/\{train,val\}/<class>/<image>"):
        folder.splits(Folder(kind="folder", name="own", **common), tmp_path)
    tree(tmp_path / "imagenet")
    (tmp_path / "list.txt").write_text("cat\nbird\n")
    (tmp_path / "flat" / "train").mkdir(parents=True)
    (tmp_path / "flat" / "val").mkdir()
    picture_file(tmp_path / "flat" / "train" / "0.jpg")
    with pytest.raises(ValueError, match="no class folder in .*flat/train"):
        folder.splits(Folder(kind="folder", name="flat", **common), tmp_path)
    with pytest.raises(ValueError, match="lacks 1 of 2 classes, the first is bird"):
        imagenet100.splits(imagenet100.Config(kind="imagenet100", list=str(tmp_path / "list.txt"), **common), tmp_path)
    (tmp_path / "list.txt").write_text("dog\ncat\n")
    found = imagenet100.splits(imagenet100.Config(kind="imagenet100", list=str(tmp_path / "list.txt"), **common), tmp_path)
    assert found.classes == ["dog", "cat"]
    assert found.train[0].label == 0
    assert found.train[0].key == "dog/0"
    (tmp_path / "own" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "own" / "val" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no image"):
        folder.splits(Folder(kind="folder", name="own", **common), tmp_path)


def test_imagenet100_is_the_list_of_100_classes() -> None:
    names = (Path(__file__).parent.parent / "data" / "imagenet100.txt").read_text().split()
    assert len(set(names)) == 100
    assert (names[0], names[-1]) == ("n02869837", "n02090622")


def test_a_changed_shard_is_noticed(shard_folder, tmp_path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(shard_folder, copy)
    path = copy / "train-000001.tar"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ValueError, match=r"train-000001.tar has \d+ bytes, its manifest says"):
        Reader(copy, "train")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_number_of_ranks_and_workers_sees_the_same_batches(shard_folder, params, ranks, workers) -> None:
    reader = Reader(shard_folder, "train")
    views = list(params.views.values())
    reference = TrainSet(reader, views, Plan(len(reader), 36, 7))
    assert reference.plan.steps_per_epoch == 3
    shares = [TrainSet(reader, views, Plan(len(reader), 36, 7, rank, ranks)).batches(0, 6, workers) for rank in range(ranks)]
    seen = []
    for step, parts in enumerate(zip(*shares, strict=True)):
        whole = reference[step]
        assert {len(part.labels) for part in parts} == {36 // ranks}
        assert torch.equal(torch.cat([part.positions for part in parts]), whole.positions)
        assert torch.equal(torch.cat([part.labels for part in parts]), torch.from_numpy(reader.labels)[whole.positions])
        assert torch.equal(torch.cat([part.drawn for part in parts], 1), whole.drawn)
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
            assert torch.equal(expected.drawn, found.drawn)


def test_views_differ_between_epochs_and_views(shard_folder, params) -> None:
    reader = Reader(shard_folder, "train")
    data = TrainSet(reader, list(params.views.values()), Plan(len(reader), 120, 7))
    first, second = data[0], data[1]
    a, b = first.positions.argsort(), second.positions.argsort()
    assert not torch.equal(first.images[0][a], second.images[0][b])
    assert not torch.equal(first.images[0], first.images[1])
    assert not torch.equal(first.drawn[0], first.drawn[1])


def test_evaluation_reads_every_sample_once(shard_folder) -> None:
    reader = Reader(shard_folder, "val")
    data = EvalSet(reader, resize=32, crop=32)
    expected = np.stack([centre(reader.pixels(position), 32, 32) for position in range(60)])
    for batch_size, workers in ((25, 2), (60, 1), (7, 0), (100, 2)):
        images = torch.cat([block.clone() for block in data.batches(batch_size, workers)])
        assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), expected)
