"""Raw images to shards: the same bytes every time, whatever the images, the disk and the signals do."""

import hashlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import psutil
import pytest
import sklearn.datasets  # noqa: F401  before the processes are forked, which would all import it
import webdataset
from PIL import Image as Picture
from rich.console import Console

import cl.detection.scenes  # noqa: F401
from cl.console import progress
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.shards import images, writing
from cl.sources import Splits, Storage, photos
from cl.sources._shared import imagenet
from cl.sources._shared.class_folders import class_folders
from pipeline import command
from pipeline.prepare import main
from tests.shards.test_images import FILES, SAMPLES, mutated
from tests.sources.test_sources import imagenet_archives, imagenet_folders
from tests.support.project import ROOT, compose
from tests.support.tiny import write_shards


def digest(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


def picture_file(path: Path, seed: int = 0, size: tuple[int, int] = (30, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    Picture.fromarray(noise).resize(size).save(path, "JPEG")
    return path


def tree(root: Path, count: int = 3, size: tuple[int, int] = (30, 20)) -> Path:
    for split in ("train", "val"):
        for label, name in enumerate(("cat", "dog")):
            for number in range(count if split == "train" else 2):
                picture_file(root / split / name / f"{number}.jpg", 100 * label + number, size)
    return root


def odd_tree(root: Path) -> Path:
    """Images of every kind and size, and some that cannot be read."""
    cat = tree(root) / "train" / "cat"
    for number, (name, content) in enumerate(FILES.items()):
        (cat / f"{number} {name.replace(':', '')}.jpg").write_bytes(content)
    whole = picture_file(cat / "large.jpg", size=(60, 90)).read_bytes()
    (cat / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (cat / "empty.jpg").write_bytes(b"")
    (cat / "text.jpg").write_text("no image")
    (cat / "nowhere.jpg").symlink_to("nothing")
    Picture.fromarray(np.full((20, 30), 0.5, np.float32)).save(cat / "float.tif")
    picture_file(root / "train" / "dog" / f"{'long' * 40}.jpg")
    picture_file(root / "train" / "dog" / "é.b.jpg")
    return root


UNREADABLE = {f"cat/{name}" for name in ("truncated", "empty", "text", "nowhere", "float")}


@pytest.mark.parametrize("encode", ["copy", "jpeg", "raw"])
@pytest.mark.parametrize("shrink", [None, 25])
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_bytes_depend_on_the_images_exclusive(tmp_path, encode, shrink) -> None:
    """Not on the number of workers, the place of the raw data, or the time of its files."""
    found = []
    for workers in (1, 2, 3):
        root = odd_tree(tmp_path / f"{workers}" / "own")
        for path in root.rglob("*.jpg"):
            if path.is_file():
                os.utime(path, (workers, workers))
        shards = tmp_path / f"shards {workers}"
        manifest = write_shards(
            class_folders(root), shards, 7, workers=workers, encode=encode, shrink=shrink, upright=True
        )
        found.append(digest(shards))
        assert set(manifest.splits["train"].skipped) == UNREADABLE
    assert found[0] == found[1] == found[2]


def test_the_files_are_shards_index_keys_and_manifest(params, tmp_path) -> None:
    write_shards(photos.splits(params.dataset, tmp_path), tmp_path / "shards", 50, workers=2)
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == [
        "manifest.json",
        *(f"train-{i:06d}.tar" for i in range(3)),
        "train.npy",
        "train_keys.npy",
        *(f"val-{i:06d}.tar" for i in range(2)),
        "val.npy",
        "val_keys.npy",
    ]


@pytest.mark.parametrize("shard_images", [1, 4, 1000])
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_skipped_images_shift_nothing(tmp_path, shard_images) -> None:
    root = odd_tree(tmp_path / "own")
    write_shards(class_folders(root), tmp_path / "shards", shard_images, workers=2)
    reader = Reader(tmp_path / "shards", "train")
    files = {image.key: image for image in class_folders(root).train}
    assert {key.decode() for key in reader.keys} == files.keys() - UNREADABLE
    for position, (key, label) in enumerate(zip(reader.keys, reader.labels, strict=True)):
        image = files[key.decode()]
        assert label == image.label
        assert reader.read(position) == image.read()
        assert np.array_equal(reader.pixels(position), images.decode(image.read()))
    shards = [shard.name for split in reader.manifest.splits.values() for shard in split.shards]
    assert shards == sorted(path.name for path in (tmp_path / "shards").glob("*.tar"))
    assert min(shard.images for shard in reader.manifest.splits["train"].shards) > 0


def test_the_order_does_not_depend_on_the_size_of_shards(tmp_path) -> None:
    splits = class_folders(tree(tmp_path / "own", 20))
    for size in (3, 7, 100):
        write_shards(splits, tmp_path / f"{size}", size)
    keys = [Reader(tmp_path / f"{size}", "train").keys.tolist() for size in (3, 7, 100)]
    assert keys[0] == keys[1] == keys[2] != sorted(keys[0])


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_reasons_are_sentences_without_a_place_or_an_address(tmp_path) -> None:
    manifest = write_shards(class_folders(odd_tree(tmp_path / "own")), tmp_path / "shards", 10)
    assert manifest.splits["train"].skipped == {
        "cat/truncated": "OSError: image file is truncated (28 bytes not processed)",
        "cat/empty": "ValueError: the file is empty",
        "cat/text": "ValueError: it is no image, or of an unknown format",
        "cat/nowhere": "FileNotFoundError: No such file or directory",
        "cat/float": "ValueError: pixels of mode F have no known range",
    }


def test_a_png_named_jpeg_is_stored_as_png(tmp_path) -> None:
    root = tree(tmp_path / "own")
    Picture.new("RGB", (20, 30)).save(
        root / "train" / "cat" / "n02105855_2933.JPEG", "PNG"
    )  # such a one is in ILSVRC
    write_shards(class_folders(root), tmp_path / "shards", 4)
    names = [m.name for p in (tmp_path / "shards").glob("train*.tar") for m in tarfile.open(p)]
    assert "cat/n02105855_2933.png" in names


def test_what_was_changed_is_counted(tmp_path) -> None:
    root = tree(tmp_path / "own")
    exif = Picture.Exif()
    exif[images.ORIENTATION] = 6
    for number, size in enumerate(((40, 50), (50, 40), (20, 30))):
        Picture.new("RGB", size).save(root / "train" / "cat" / f"turned {number}.jpg", exif=exif)
    splits = class_folders(root)
    shrunk = write_shards(splits, tmp_path / "shrunk", 2, shrink=30, upright=True).splits["train"]
    assert (shrunk.images, shrunk.reencoded, shrunk.turned) == (9, 2, 3)
    reader = Reader(tmp_path / "shrunk", "train")
    shapes = {key.decode(): reader.pixels(position).shape for position, key in enumerate(reader.keys)}
    assert [shapes[f"cat/turned {number}"] for number in range(3)] == [(30, 38, 3), (38, 30, 3), (20, 30, 3)]
    plain = write_shards(splits, tmp_path / "plain", 2).splits["train"]
    assert (plain.reencoded, plain.turned) == (0, 0)
    every = write_shards(splits, tmp_path / "every", 2, encode="jpeg").splits["train"]
    assert (every.reencoded, every.turned) == (9, 0)


def test_jpegs_are_copied_byte_by_byte(shard_folder) -> None:
    reader = Reader(shard_folder, "train")
    raw = next((shard_folder.parent / "raw" / "photos").iterdir())
    for position in (0, 57, 119):
        assert (
            reader.read(position) == (raw / "train" / (reader.keys[position].decode() + ".jpg")).read_bytes()
        )


def test_manifest_names_every_shard_with_its_hash(shard_folder) -> None:
    manifest = json.loads((shard_folder / "manifest.json").read_text())
    assert manifest["splits"]["train"]["images"] == 120
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            content = (shard_folder / shard["name"]).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (shard["bytes"], shard["sha256"])


def by_webdataset(folder: Path, split: str, *how: str) -> Iterator[dict]:
    urls = sorted(str(path) for path in folder.glob(f"{split}-*.tar"))
    return iter(webdataset.WebDataset(urls, shardshuffle=False).decode(*how))


def agree(reader: Reader, samples: Iterator[dict], extension: str) -> int:
    """How many samples of the library are those of our reader."""
    number = -1
    for number, sample in enumerate(samples):
        assert sample["__key__"].encode() == reader.keys[number]
        assert sample["cls"] == reader.labels[number]
        assert np.array_equal(np.asarray(sample[extension]), reader.pixels(number))
    assert number + 1 == len(reader)
    return len(reader)


def test_the_webdataset_library_reads_the_shards(shard_folder) -> None:
    assert agree(Reader(shard_folder, "train"), by_webdataset(shard_folder, "train", "pil"), "jpg") == 120


def test_the_webdataset_library_reads_raw_pixels(tmp_path) -> None:
    write_shards(class_folders(tree(tmp_path / "own")), tmp_path / "shards", 4, encode="raw", shrink=10)
    reader = Reader(tmp_path / "shards", "train")
    assert agree(reader, by_webdataset(tmp_path / "shards", "train"), "npy") == 6
    assert reader.pixels(0).shape == (10, 15, 3)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no ImageNet samples on this machine")
@pytest.mark.parametrize("shrink", [None, 256])
def test_imagenet_samples_are_read_by_the_webdataset_library(tmp_path, shrink) -> None:
    for split in ("train", "val"):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / split).symlink_to(SAMPLES)
    splits = class_folders(tmp_path / "raw")
    splits = type(splits)(splits.classes, splits.train, splits.train)  # a class more than once is no matter
    manifest = write_shards(splits, tmp_path / "shards", 16, workers=2, shrink=shrink)
    train = manifest.splits["train"]
    assert (len(manifest.classes), train.images, train.skipped) == (100, 100, {})
    reader = Reader(tmp_path / "shards", "train")
    assert agree(reader, by_webdataset(tmp_path / "shards", "train", "pil"), "jpg") == 100
    files = {image.key: image for image in splits.train}
    same = [reader.read(number) == files[key.decode()].read() for number, key in enumerate(reader.keys)]
    assert same.count(False) == train.reencoded
    if shrink:
        assert train.reencoded > 50
        assert {min(reader.pixels(number).shape[:2]) for number in np.flatnonzero(~np.array(same))} == {256}
    else:
        assert train.reencoded == 0


def test_a_class_without_a_readable_image_is_refused(tmp_path) -> None:
    root = tree(tmp_path / "own")
    for file in (root / "val" / "dog").iterdir():
        file.write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"class dog has no readable image in val \(dog/\d: ValueError: the file is empty"
    ):
        write_shards(class_folders(root), tmp_path / "shards", 4)
    assert not (tmp_path / "shards").exists()


def test_same_names_are_refused(tmp_path) -> None:
    root = tree(tmp_path / "own")
    Picture.new("RGB", (2, 3)).save(root / "train" / "cat" / "0.png")
    with pytest.raises(ValueError, match="have the same name 'cat/0' without extension: rename one"):
        write_shards(class_folders(root), tmp_path / "shards", 4)


def test_too_long_names_are_refused(tmp_path) -> None:
    root = tree(tmp_path / "own")
    picture_file(root / "train" / "cat" / f"{'x' * 197}.jpg")
    with pytest.raises(ValueError, match="is longer than 200 bytes: rename it"):
        write_shards(class_folders(root), tmp_path / "shards", 4)


@pytest.mark.filterwarnings("ignore")
def test_mutated_images_are_stored_and_read_or_listed(tmp_path) -> None:
    root = tree(tmp_path / "own")
    whole = list(FILES.values())
    for seed in range(500):
        (root / "train" / "dog" / f"mutated {seed}.jpg").write_bytes(
            mutated(whole[seed * 7 % len(whole)], seed)
        )
    train = write_shards(class_folders(root), tmp_path / "shards", 40, workers=2).splits["train"]
    assert train.images + len(train.skipped) == 506
    assert min(train.images, len(train.skipped)) > 50
    reader = Reader(tmp_path / "shards", "train")
    for position in range(len(reader)):
        assert reader.pixels(position).shape[2] == 3


def test_mutated_archives_are_read_or_refused_in_a_sentence(tmp_path) -> None:
    imagenet_folders(tmp_path / "folders")
    root = tmp_path / "raw" / "imagenet"
    imagenet_archives(tmp_path / "folders", root)
    truth = imagenet._truth(root / imagenet.DEVKIT)
    seen = {"read": 0, "refused": 0}
    for name in (imagenet.TRAIN, imagenet.VAL):
        whole = (root / name).read_bytes()
        headers = [at for at in range(0, len(whole), 512) if whole[at + 257 : at + 262] == b"ustar"]
        for seed in range(250):
            rng = np.random.default_rng(seed)
            content, at = bytearray(whole), headers[seed % len(headers)]
            if seed % 2:
                content[at + rng.integers(512)] = rng.integers(256)
            else:  # with a checksum that is right, so that the damage itself is met
                content[at + rng.choice([0, 1, 5, 124, 125, 130, 134, 135, 156, 157, 345])] = rng.choice(
                    [*b"\0/.0127LxgKSV", 128, 255]
                )
                content[at + 148 : at + 156] = b" " * 8
                content[at + 148 : at + 156] = b"%06o\0 " % sum(content[at : at + 512])
            (root / name).write_bytes(content)
            try:
                found = (
                    imagenet._train(root / name)
                    if name == imagenet.TRAIN
                    else imagenet._val(root / name, truth)
                )
            except ValueError as error:
                assert str(root / name) in str(error)
                seen["refused"] += 1
            else:
                assert all(
                    offset + length <= len(whole)
                    for images in found.values()
                    for *_, offset, length in images
                )
                seen["read"] += 1
        (root / name).write_bytes(whole)
    assert min(seen.values()) > 20, seen


@pytest.fixture
def copied(shard_folder, tmp_path) -> Path:
    return Path(shutil.copytree(shard_folder, tmp_path / "copy"))


def test_mutated_shard_folders_are_read_or_refused_in_a_sentence(copied) -> None:
    """What cannot be noticed cheaply is another letter in a name, or a bit within an image."""
    names = {}
    for name in ("manifest.json", "val.npy", "val_keys.npy"):
        whole = (copied / name).read_bytes()
        refused = 0
        for seed in range(170):
            (copied / name).write_bytes(mutated(whole, seed))
            try:
                reader = Reader(copied, "val")
                assert len(reader.keys) > 0
                for position in range(len(reader)):
                    reader.pixels(position)
            except (
                ValueError,
                OSError,
            ) as error:  # OSError: bytes that are no image, as the offset is another
                refused += 1
                assert str(error)
        (copied / name).write_bytes(whole)
        names[name] = refused
    assert all(refused > 30 for refused in names.values()), names


@pytest.mark.parametrize(
    ("field", "value"),
    [("shard", 2), ("shard", 2**32 - 1), ("offset", 2**63), ("offset", 10**6), ("length", 2**32 - 1)],
)
def test_an_index_that_points_outside_is_refused(copied, field, value) -> None:
    index = np.load(copied / "val.npy")
    index[3][field] = value
    np.save(copied / "val.npy", index)
    with pytest.raises(
        ValueError, match="row 3 of val.npy does not match its shard: run `dvc repro prepare` again"
    ):
        Reader(copied, "val").pixels(3)


def test_an_index_of_another_length_or_type_is_refused(copied) -> None:
    index = np.load(copied / "val.npy")
    for changed, words in (
        (index[:-1], "does not match the manifest"),
        (index["shard"], "is not an index"),
        (index[None], "is not an index"),
    ):
        np.save(copied / "val.npy", changed)
        with pytest.raises(ValueError, match=words):
            Reader(copied, "val")
    index["height"], index["width"] = 3, 5
    np.save(copied / "val.npy", index)
    with pytest.raises(
        ValueError, match="row 0 of val.npy does not match its shard: run `dvc repro prepare` again"
    ):
        Reader(copied, "val").pixels(0)
    for damaged in (b"", b"\x93NUMPY", (copied / "train.npy").read_bytes()[:-1]):
        (copied / "val.npy").write_bytes(damaged)
        with pytest.raises(ValueError, match="val.npy is damaged: run `dvc repro prepare` again"):
            Reader(copied, "val")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"kind": 1}', b"\xff\xfe", b'{"splits": {}}'])
def test_a_damaged_manifest_is_refused(copied, content) -> None:
    (copied / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match="manifest.json is damaged: run `dvc repro prepare` again"):
        Reader(copied, "train")


def test_a_split_that_is_not_there_is_refused(copied) -> None:
    with pytest.raises(ValueError, match="manifest.json is damaged"):
        Reader(copied, "test")


# Restarts


def stopped(splits, folder: Path, shards: int, **changes: object) -> None:  # type: ignore[no-untyped-def]
    """Ctrl-C after so many shards."""
    seen = []

    def report(done: int) -> None:
        seen.append(done)
        if len(seen) == shards:
            raise KeyboardInterrupt

    storage = Storage(
        **{
            "shard_images": 2,
            "encode": "copy",
            "shrink": None,
            "quality": 90,
            "verify": True,
            "upright": False,
        }
        | changes
    )
    with pytest.raises(KeyboardInterrupt):
        writing.write(splits, "test", storage, folder, report, workers=1)


def shards_of(folder: Path) -> dict[str, tuple[int, int]]:
    """The finished shards, and what would change if they were written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("*.tar")}


def test_finished_shards_are_kept(tmp_path) -> None:
    splits = class_folders(tree(tmp_path / "own", 8))
    write_shards(splits, tmp_path / "whole", 2)
    stopped(splits, tmp_path / "shards", 3)
    finished = shards_of(tmp_path / "shards")
    assert len(finished) == 3
    write_shards(splits, tmp_path / "shards", 2, workers=2)
    assert finished.items() <= shards_of(tmp_path / "shards").items()
    assert digest(tmp_path / "shards") == digest(tmp_path / "whole")


@pytest.mark.parametrize("change", ["image", "quality", "shard_images", "gone", "label"])
def test_other_images_or_settings_start_over(tmp_path, change) -> None:
    root = tree(tmp_path / "own", 8)
    stopped(class_folders(root), tmp_path / "shards", 6, encode="jpeg")
    finished, settings = shards_of(tmp_path / "shards"), {"encode": "jpeg", "shard_images": 2}
    match change:
        case "image":
            picture_file(root / "train" / "cat" / "3.jpg", 77)
        case "gone":
            (root / "train" / "cat" / "3.jpg").unlink()
        case "quality" | "shard_images":
            settings[change] = 3
    splits = class_folders(root)
    if change == "label":
        splits = Splits(
            splits.classes, [replace(image, label=1 - image.label) for image in splits.train], splits.val
        )
    size = settings.pop("shard_images")
    for folder in ("shards", "fresh"):
        write_shards(splits, tmp_path / folder, size, **settings)
    assert not finished.items() & shards_of(tmp_path / "shards").items()
    assert digest(tmp_path / "shards") == digest(tmp_path / "fresh")


def test_a_lost_shard_is_written_again(tmp_path) -> None:
    splits = class_folders(tree(tmp_path / "own", 8))
    write_shards(splits, tmp_path / "whole", 2)
    stopped(splits, tmp_path / "shards", 3)
    (tmp_path / "shards" / "train-000001.tar").unlink()
    write_shards(splits, tmp_path / "shards", 2)
    assert digest(tmp_path / "shards") == digest(tmp_path / "whole")


def process(function: Callable[..., None], *arguments: object) -> BaseProcess:
    started = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    started.start()
    return started


CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


def publish(folder: Path, die: int = -1) -> None:
    """Prepare and publish as the stage does, and be killed at the `die`-th change of the disk."""
    os.chdir(folder)
    seen = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event in CHANGES or (event == "open" and str(arguments[1]).startswith("w")):
            seen += 1
            if seen == die:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    with command.published(Path("data/shards"), resumable=True) as partial:
        write_shards(class_folders(Path("own")), partial, 2)


def test_a_run_killed_at_any_change_of_the_disk_is_made_good_by_the_next(tmp_path) -> None:
    """And `data/shards` has all of the earlier run, all of the new one, or for a moment nothing, but never a part."""
    for name in ("before", "now"):
        tree(tmp_path / name / "own", 2)
    picture_file(tmp_path / "now" / "own" / "train" / "cat" / "0.jpg", 5)
    finished = {}
    for name in ("before", "now"):
        once = process(publish, tmp_path / name)
        once.join()
        finished[name] = digest(tmp_path / name / "data")
    die, exitcode = 0, -signal.SIGKILL
    while exitcode:
        die += 1
        shutil.rmtree(tmp_path / "now" / "data")
        shutil.copytree(tmp_path / "before" / "data", tmp_path / "now" / "data")
        killed = process(publish, tmp_path / "now", die)
        killed.join()
        exitcode = killed.exitcode
        shards = (
            digest(tmp_path / "now" / "data" / "shards")
            if (tmp_path / "now" / "data" / "shards").exists()
            else {}
        )
        assert {f"shards/{name}": sha for name, sha in shards.items()} in (
            finished["before"],
            finished["now"],
            {},
        )
        again = process(publish, tmp_path / "now")
        again.join()
        assert again.exitcode == 0
        assert digest(tmp_path / "now" / "data") == finished["now"], die
    assert die > 30


# The stage


class Stage:
    """`python -m pipeline.prepare` in a folder of its own, forked so that it need not import everything again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.started: list[BaseProcess] = []

    def start(self, limit: int = resource.RLIM_INFINITY, log: str = "log") -> BaseProcess:
        self.started.append(process(self._run, limit, log))
        return self.started[-1]

    def _run(self, limit: int, log: str) -> None:
        os.setsid()
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # which a background job of a shell is started without
        os.chdir(self.folder)
        os.environ["CL_RAW"] = "raw"
        sys.stdout = sys.stderr = open(log, "w", buffering=1)
        os.dup2(sys.stderr.fileno(), 1)
        os.dup2(sys.stderr.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        main([])

    def run(self, code: int = 0, limit: int = resource.RLIM_INFINITY, log: str = "log") -> str:
        started = self.start(limit, log)
        started.join(300)
        said = (self.folder / log).read_text()
        assert started.exitcode == code, said
        return said

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, shards: int, running: BaseProcess) -> None:
        """Wait until so many shards are finished."""
        notes = self.data / "shards.partial" / "notes"
        while len(list(notes.glob("*.npz"))) < shards:
            assert running.exitcode is None, self.log
            time.sleep(0.002)

    @property
    def files(self) -> dict[str, str]:
        return {
            name: sha for name, sha in digest(self.folder).items() if name.startswith(("data", "results"))
        }


def workers_of(leader: int) -> list[int]:
    """The other processes of a session."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):  # it ends just now
            if os.getsid(process.pid) == leader != process.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Raw images that take some time, and how to prepare them."""
    folder = tmp_path_factory.mktemp("stage")
    tree(folder / "raw" / "own", 30, (900, 700))
    picture_file(folder / "raw" / "own" / "train" / "dog" / f"{'long' * 45}.jpg")
    settings = ["name=own", "shard_images=2", "shrink=8", "scenes.train=1", "scenes.val=1"]
    compose(folder, "dataset=folder", *(f"dataset.{setting}" for setting in settings))
    shutil.copy(ROOT / "dvc.yaml", folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(template, tmp_path_factory) -> dict[str, str]:
    stage = Stage(Path(shutil.copytree(template, tmp_path_factory.mktemp("undisturbed") / "stage")))
    assert "65 images" in stage.run()
    return stage.files


@pytest.fixture
def stage(template, tmp_path) -> Iterator[Stage]:
    stage = Stage(Path(shutil.copytree(template, tmp_path / "stage")))
    yield stage
    for running in stage.started:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def ends_well(stage: Stage, undisturbed: dict[str, str]) -> None:
    """The next run keeps what is finished, and ends as if nothing had happened."""
    partial = stage.data / "shards.partial"
    noted = {f"{path.stem}.tar" for path in (partial / "notes").glob("*.npz")}
    finished = {name: state for name, state in shards_of(partial).items() if name in noted}
    assert len(finished) >= 3
    stage.run()
    assert finished.items() <= shards_of(stage.data / "shards").items()
    changes = {name for name, _ in stage.files.items() ^ undisturbed.items()}
    assert changes == {"results/prepare.provenance.json"}  # its date


@pytest.mark.parametrize(
    ("number", "group", "code"),
    [
        (signal.SIGKILL, False, -signal.SIGKILL),
        (signal.SIGKILL, True, -signal.SIGKILL),
        (signal.SIGTERM, False, -signal.SIGTERM),
        (signal.SIGINT, True, 130),
    ],
)
def test_a_run_that_is_stopped_goes_on(stage, undisturbed, number, group, code) -> None:
    for _ in range(3):
        running = stage.start()
        stage.until(3, running)
        (os.killpg if group else os.kill)(running.pid, number)
        running.join(120)
        if running.exitcode != 0:  # it was not faster than the signal
            break
        shutil.rmtree(stage.data)
    assert running.exitcode == code
    began = time.monotonic()
    while workers_of(running.pid):
        assert time.monotonic() - began < 60
        time.sleep(0.01)
    assert "Traceback" not in stage.log
    ends_well(stage, undisturbed)


def test_a_killed_worker_is_a_sentence_and_not_a_hang(stage, undisturbed) -> None:
    running = stage.start()
    stage.until(3, running)
    os.kill(workers_of(running.pid)[0], signal.SIGKILL)
    running.join(120)
    assert running.exitcode == 1
    assert (
        "Error: a worker was killed, perhaps as memory ran out: run again, it goes on from here" in stage.log
    )
    assert "Traceback" not in stage.log
    ends_well(stage, undisturbed)


def test_a_second_run_at_once_is_refused_and_does_no_harm(stage, undisturbed) -> None:
    first = stage.start()
    stage.until(1, first)
    os.killpg(first.pid, signal.SIGSTOP)
    words = "Error: another process is writing into data: wait until it has finished, or stop it\n"
    assert stage.run(code=1, log="second") == words
    os.killpg(first.pid, signal.SIGCONT)
    first.join(120)
    assert first.exitcode == 0, stage.log
    assert {name for name, _ in stage.files.items() ^ undisturbed.items()} == {
        "results/prepare.provenance.json"
    }


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True
    )
    if mount.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def earlier(stage: Stage) -> dict[str, str]:
    """Shards of an earlier run, which a failed one must leave as they are."""
    write_shards(class_folders(tree(stage.folder / "earlier")), stage.data / "shards", 10)
    return digest(stage.data / "shards")


def is_full(log: str, words: str) -> None:
    assert f"Error: {words}" in log
    assert "nothing half-written is left" in log
    assert "what is finished is kept in data/shards.partial: run again to go on from there" in log
    assert "Traceback" not in log
    assert "Exception ignored" not in log


def test_a_full_disk_is_a_sentence_and_leaves_no_half_shard(stage, undisturbed) -> None:
    with small_disk(stage.data, 400_000):
        kept = earlier(stage)
        (stage.data / "filler").write_bytes(bytes(150_000))
        is_full(stage.run(code=1), "No space left on device")
        assert digest(stage.data / "shards") == kept
        assert not list(stage.data.rglob("*.tar.partial"))
        for path in (stage.data / "shards.partial").glob("*.tar"):
            assert len(tarfile.open(path).getnames()) in (4, 2)
        (stage.data / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=2m", str(stage.data)], check=True)
        ends_well(stage, undisturbed)


@pytest.mark.parametrize(("limit", "finished"), [(9_000, 0), (10_240, 33)])
def test_files_that_may_not_grow_are_a_sentence(stage, undisturbed, limit, finished) -> None:
    """The first limit is met by all shards, the second by none, but by the keys."""
    kept = earlier(stage)
    is_full(stage.run(code=1, limit=limit), "File too large")
    assert digest(stage.data / "shards") == kept
    assert len(shards_of(stage.data / "shards.partial")) == finished
    if finished:
        ends_well(stage, undisturbed)


def test_progress_in_a_log_file_says_how_long_it_takes(monkeypatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(progress, "RARELY", 0.0)
    with Progress("prepare", Console(file=file)).count(30, "images") as report:
        time.sleep(0.6)
        report(10)
        report(20)
    assert file.getvalue().splitlines() == [
        "prepare: 30 images",
        "prepare: 10 of 30 images, 1 s left",
        "prepare: 30 of 30 images, 0 s left",
    ]


def test_what_was_kept_does_not_shorten_the_time_left(monkeypatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(progress, "RARELY", 0.0)
    with Progress("prepare", Console(file=file)).count(100, "images") as report:
        report(80, kept=True)
        time.sleep(0.6)
        report(10)
    assert file.getvalue().splitlines() == ["prepare: 100 images", "prepare: 90 of 100 images, 1 s left"]


def test_progress_in_a_log_file_is_rare() -> None:
    file = io.StringIO()
    with Progress("prepare", Console(file=file)).count(1000, "images") as report:
        for _ in range(1000):
            report(1)
    assert file.getvalue() == "prepare: 1000 images\n"


def test_progress_on_a_terminal_is_a_bar() -> None:
    file = io.StringIO()
    with Progress("prepare", Console(file=file, force_terminal=True, width=80)).count(30, "images") as report:
        report(10)
        time.sleep(0.2)
        report(20)
    assert "prepare (images)" in file.getvalue()
    assert "30/30" in file.getvalue()
    assert "━" in file.getvalue()
