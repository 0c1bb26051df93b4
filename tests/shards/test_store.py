"""Shards in an object store: written there, read from there, and every failure named."""

from pathlib import Path

import fsspec
import pytest

from cl.data.cache import Cache
from cl.data.reader import Reader
from cl.sources._shared.class_folders import class_folders
from tests.support.pictures import digest, tree
from tests.support.tiny import write_shards

STORE = "s3://bucket/some/shards"


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The store as a URL or as a folder."""
    if request.param == "folder":
        return str(tmp_path / "elsewhere/shards")
    request.getfixturevalue("store")
    return STORE


def tars(place: str) -> list[str]:
    files, path = fsspec.core.url_to_fs(place)
    files.invalidate_cache()
    return sorted(name.rsplit("/", 1)[-1] for name in files.find(path))


@pytest.mark.parametrize("place", ["s3", "folder"], indirect=True)
def test_the_store_has_the_shards_and_the_folder_the_rest(tmp_path, place) -> None:
    splits = class_folders(tree(tmp_path / "own", 6))
    local, remote = tmp_path / "local", tmp_path / "remote"
    write_shards(splits, local, 5)
    manifest = write_shards(splits, remote, 5, store=f"{place}/", workers=2)
    files, others = digest(local), digest(remote)
    shards = {name for name in files if name.endswith(".tar")}
    assert files.keys() ^ others.keys() == shards
    assert {name for name in others if files[name] != others[name]} == {"manifest.json"}
    named = [shard for split in manifest.splits.values() for shard in split.shards]
    assert tars(place) == sorted(shard.name for shard in named)
    assert all(f"-{shard.sha256[:12]}.tar" in shard.name for shard in named)
    here = Reader(local, "train")
    there = Reader(remote, "train", place, Cache(tmp_path / "cache", 10**8))
    for position in range(len(here)):
        assert there.read(position) == here.read(position)
    assert place not in (remote / "manifest.json").read_text()  # wherever they are, it is the same data


def test_what_is_in_the_store_is_not_written_again(tmp_path, store) -> None:
    splits, folder = class_folders(tree(tmp_path / "own", 6)), tmp_path / "shards"
    write_shards(splits, folder, 5, store=STORE)
    content, before = digest(folder), tars(STORE)
    store.requests.clear()
    write_shards(splits, folder, 5, store=STORE)
    assert digest(folder) == content
    assert tars(STORE) == before
    assert not [request for request in store.requests if request[0] in ("PUT", "POST")]


def test_a_change_adds_shards_and_keeps_those_that_an_earlier_manifest_names(tmp_path, store) -> None:
    for count in (6, 7):
        splits = class_folders(tree(tmp_path / f"own {count}", count))
        write_shards(splits, tmp_path / f"shards {count}", 5, store=STORE)
    for count in (6, 7):
        reader = Reader(tmp_path / f"shards {count}", "train", STORE, Cache(tmp_path / "cache", 10**8))
        assert len(reader) == 2 * count
        assert all(len(reader.read(position)) for position in range(len(reader)))


def test_failures_of_the_store_are_retried(tmp_path, store) -> None:
    splits, folder = class_folders(tree(tmp_path / "own", 6)), tmp_path / "shards"
    store.failures = 2
    write_shards(splits, folder, 5, store=STORE)
    reader = Reader(folder, "train", STORE, Cache(tmp_path / "cache", 10**8))
    store.failures, store.delay = 2, 0.02
    expected = [path.read_bytes() for path in sorted((tmp_path / "own/train").rglob("*.jpg"))]
    assert sorted(bytes(reader.read(position)) for position in range(12)) == sorted(expected)


def test_a_store_without_the_bucket_is_named(tmp_path, store) -> None:
    splits = class_folders(tree(tmp_path / "own"))
    with pytest.raises(ValueError, match=r"s3://nobody/shards/train-000000-\w{12}.tar cannot be written: "):
        write_shards(splits, tmp_path / "shards", 5, store="s3://nobody/shards")


def test_changed_and_missing_shards_are_named(tmp_path, store) -> None:
    splits, folder = class_folders(tree(tmp_path / "own", 6)), tmp_path / "shards"
    manifest = write_shards(splits, folder, 5, store=STORE)
    first, second, _ = (shard.name for shard in manifest.splits["train"].shards)
    files = fsspec.filesystem("s3")
    reader = Reader(folder, "train", STORE, Cache(tmp_path / "cache", 10**8))
    reader.read(0)
    content = files.cat_file(f"{STORE}/{first}")
    files.pipe_file(f"{STORE}/{first}", content[:-1] + b"x")
    for path in (tmp_path / "cache").rglob("*.piece"):
        path.unlink()
    with pytest.raises(ValueError, match=rf"{STORE}/{first} changed since it was first read"):
        reader.read(0)
    files.pipe_file(f"{STORE}/{first}", content[:-1])
    with pytest.raises(ValueError, match=rf"{first} has {len(content) - 1} bytes, but its manifest says"):
        Reader(folder, "train", STORE, Cache(tmp_path / "cache", 10**8))
    files.pipe_file(f"{STORE}/{first}", content)
    files.rm(f"{STORE}/{second}")
    with pytest.raises(ValueError, match=rf"{STORE}/{second} is missing: run `dvc repro -f prepare`"):
        Reader(folder, "train", STORE, Cache(tmp_path / "cache", 10**8))
