"""Raw data in an object store gives the shards that the same data on this machine gives."""

import gc
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from cl.images.folders import SUFFIXES
from cl.runtime.registry import module_of
from cl.runtime.stores import path_of
from cl.sources import imagenet, unlabelled
from pipeline.support import locations
from tests.support.pictures import digest, picture_file
from tests.support.tiny import write_shards

RAW = "s3://bucket/raw"


def upload(raw: Path) -> Path:
    files = fsspec.filesystem("s3")
    for path in raw.rglob("*"):
        if path.is_file():
            files.put_file(str(path), f"{RAW}/{path.relative_to(raw)}")
    return path_of(RAW)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("imagenet", "imagenet100", "unlabelled")]


@pytest.mark.parametrize("kind", ["folder", "table", *SLOW])
def test_data_at_a_url_gives_the_same_shards(store, source, tmp_path, kind) -> None:
    config, splits = source(kind), module_of("sources", kind).splits
    next((tmp_path / "raw").iterdir()).joinpath("notes.txt").touch()
    remote = upload(tmp_path / "raw")
    config.check_present(remote)
    there = splits(config, remote)
    here = splits(config, tmp_path / "raw")
    assert (there.classes, there.left_out) == (here.classes, here.left_out)
    write_shards(here, tmp_path / "here", 4)
    write_shards(there, tmp_path / "there", 4, workers=2)
    assert digest(tmp_path / "there") == digest(tmp_path / "here")


def test_archives_at_a_url_give_the_same_shards(store, ilsvrc, tmp_path) -> None:
    config = SimpleNamespace(classes=3)
    found = [imagenet.splits(config, raw) for raw in (tmp_path / "raw", upload(tmp_path / "raw"))]
    for name, splits in zip(("here", "there"), found, strict=True):
        write_shards(splits, tmp_path / name, 4)
    assert digest(tmp_path / "there") == digest(tmp_path / "here")


@pytest.fixture
def pictures(store, tmp_path):  # type: ignore[no-untyped-def]
    """The listed images of a folder in the store, and what writes their shards."""
    for number in range(12):
        picture_file(tmp_path / f"raw/own/{number:02d}.jpg", number)
    return unlabelled.splits(SimpleNamespace(**CONFIG), upload(tmp_path / "raw"))


CONFIG = {
    "holdout": 0.3,
    "suffixes": SUFFIXES,
    "folder": lambda raw: raw / "own",
    "check_present": lambda raw: None,
}


def test_failures_while_images_are_read_are_retried(pictures, store, tmp_path) -> None:
    store.failures, store.delay = 2, 0.01
    manifest = write_shards(pictures, tmp_path / "shards", 4)
    assert sum(split.images for split in manifest.splits.values()) == 12
    assert not any(split.skipped for split in manifest.splits.values())


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_object_that_is_gone_is_skipped_and_a_changed_one_is_named(pictures, tmp_path) -> None:
    files = fsspec.filesystem("s3")
    url = pictures.train[0].place
    files.rm(url)
    manifest = write_shards(pictures, tmp_path / "shards", 4)
    (reason,) = manifest.splits["train"].skipped.values()
    assert reason == "FileNotFoundError: not in the store"
    files.pipe_file(url, b"other")
    with pytest.raises(ValueError, match=f"{url} changed after it was listed; run again"):
        write_shards(pictures, tmp_path / "other", 4)
    gc.collect()  # nothing is written by destructors


def test_what_needs_files_on_this_machine_says_so(store, source, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CL_RAW", RAW)
    with pytest.raises(ValueError, match=f"CL_RAW={RAW}: cifar-10-python.tar.gz .* folder"):
        module_of("sources", "cifar10").splits(source("cifar10"), locations.raw())
    with pytest.raises(ValueError, match=f"CL_RAW={RAW}, but detection data"):
        locations.raw_folder()
