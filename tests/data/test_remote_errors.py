"""Servers that fail, lack files or features, and shards that change."""

import importlib.util
import os

import numpy as np
import pytest

from cl.data.cache import Cache
from cl.data.reader import Reader
from tests.support.remote import smallest_limit


def test_failures_are_retried_and_then_reported_in_one_line(folder, server, cache) -> None:
    reader, local = Reader(server.url, "train", cache), Reader(folder, "train")
    server.failures = 5  # HEAD and the GET that replaces it, twice, then the HEAD of the third attempt
    assert reader.read(0) == local.read(0)
    server.cuts = 2  # half an answer
    assert reader.read(20) == local.read(20)
    server.failures = 10**9
    cause = "ClientResponseError: 503.*; check the address, the network and your permissions"
    sentence = rf"{server.url}/train-000001.tar cannot be read: {cause}"
    with pytest.raises(ValueError, match=sentence):
        reader.read(60)
    server.failures = 0
    assert reader.read(60) == local.read(60)
    with pytest.raises(ValueError, match=r"127.0.0.1:1/manifest.json cannot be read: ConnectionRefusedError"):
        Reader("http://127.0.0.1:1", "train", cache)


def test_missing_files_are_reported_without_further_attempts(own_folder, server, cache) -> None:
    with pytest.raises(ValueError, match=rf"{server.url}/no/manifest.json cannot be read: FileNotFoundError"):
        Reader(f"{server.url}/no", "train", cache)
    reader = Reader(server.url, "train", cache)
    (own_folder / "train-000000.tar").unlink()
    count = len(server.requests)
    with pytest.raises(
        ValueError, match=rf"{server.url}/train-000000.tar cannot be read: ClientResponseError: 404"
    ):
        reader.read(0)
    assert len(server.requests) <= count + 2


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_protocol_whose_package_is_missing_names_the_package(cache) -> None:
    with pytest.raises(
        ValueError, match=r"s3://bucket/manifest.json needs .*: Install s3fs to access S3 \(pip install s3fs"
    ):
        Reader("s3://bucket", "train", cache)


def test_a_server_without_ranges_is_refused(server, cache) -> None:
    reader = Reader(server.url, "train", cache)
    server.ranges = False
    with pytest.raises(
        ValueError, match=r"train-000000.tar cannot be read in parts; its server must support HTTP range"
    ):
        reader.read(0)


def test_a_changed_shard_is_detected(own_folder, server, cache) -> None:
    """Even by a process that starts later, with pieces of the earlier version in the cache."""
    reader = Reader(server.url, "train", cache)
    reader.read(0)
    os.utime(own_folder / "train-000000.tar", ns=(1, 1))
    for late in (reader, Reader(server.url, "train", cache)):
        with pytest.raises(
            ValueError,
            match=r'train-000000.tar changed .*, now "1"\): upload data/shards again, remove',
        ):
            late.read(20)
    os.truncate(own_folder / "train-000001.tar", 1000)
    with pytest.raises(
        ValueError,
        match=r"train-000001.tar has 1000 bytes, but its manifest says \d+: upload data/shards again",
    ):
        reader.read(60)


def test_an_index_of_other_shards_is_refused(own_folder, server, cache) -> None:
    np.save(own_folder / "train.npy", np.load(own_folder / "train.npy")[:-1])
    with pytest.raises(ValueError, match=r"train.npy, with 319 rows, does not match the manifest"):
        Reader(server.url, "train", cache)


def test_a_cache_that_is_too_small_is_refused(folder, server, tmp_path) -> None:
    limit = smallest_limit(folder)
    with pytest.raises(
        ValueError,
        match=rf"{server.url} needs a cache of at least {limit} bytes, found {limit - 1}: set CL_CACHE_GB=",
    ):
        Reader(server.url, "train", Cache(tmp_path / "cache", limit - 1))
    Reader(server.url, "train", Cache(tmp_path / "cache", limit))
