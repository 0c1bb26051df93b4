"""Servers that fail, lack files or features, and shards that change."""

import os
import sys

import pytest

from cl.data.cache import Cache
from cl.data.reader import Reader
from tests.support.remote import smallest_limit


def test_failures_are_retried_and_then_reported_in_one_line(folder, server, cache) -> None:
    reader, local = Reader(folder, "train", server.url, cache), Reader(folder, "train")
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
    away = Reader(folder, "train", "http://127.0.0.1:1", cache)
    with pytest.raises(ValueError, match=r"127.0.0.1:1/.*.tar cannot be read: ClientConnectorError"):
        away.read(0)


def test_missing_files_are_reported_without_further_attempts(own_folder, server, cache) -> None:
    reader = Reader(own_folder, "train", server.url, cache)
    (own_folder / "train-000000.tar").unlink()
    count = len(server.requests)
    with pytest.raises(ValueError, match=rf"{server.url}/train-000000.tar .*: ClientResponseError: 404"):
        reader.read(0)
    assert len(server.requests) <= count + 2


def test_a_store_that_lists_its_files_names_the_shard_at_once(own_folder, cache) -> None:
    store, shard = own_folder.as_uri(), own_folder / "train-000003.tar"
    size = shard.stat().st_size
    os.truncate(shard, 1000)
    with pytest.raises(
        ValueError, match=rf"{store}/train-000003.tar has 1000 bytes, .* {size}: run `dvc repro"
    ):
        Reader(own_folder, "train", store, cache)
    shard.unlink()
    with pytest.raises(ValueError, match=rf"{store}/train-000003.tar is missing: run `dvc repro"):
        Reader(own_folder, "train", store, cache)


def test_a_protocol_whose_package_is_missing_names_the_package(folder, cache, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ValueError, match=r"gs://bucket needs a package .* \(pip install"):
        Reader(folder, "train", "gs://bucket", cache)


def test_a_server_without_ranges_is_refused(folder, server, cache) -> None:
    reader = Reader(folder, "train", server.url, cache)
    server.ranges = False
    with pytest.raises(ValueError, match=r"train-000000.tar cannot be read in parts; its server must"):
        reader.read(0)


def test_a_changed_shard_is_detected(own_folder, server, cache) -> None:
    """Even by a process that starts later, with pieces of the earlier version in the cache."""
    reader = Reader(own_folder, "train", server.url, cache)
    reader.read(0)
    os.utime(own_folder / "train-000000.tar", ns=(1, 1))
    for late in (reader, Reader(own_folder, "train", server.url, cache)):
        with pytest.raises(ValueError, match=r'train-000000.tar changed .*, now "1"\): run `dvc .*, remove'):
            late.read(20)
    os.truncate(own_folder / "train-000001.tar", 1000)
    with pytest.raises(ValueError, match=r"train-000001.tar has 1000 bytes, .* \d+: run `dvc repro"):
        reader.read(60)


def test_a_cache_that_is_too_small_is_refused(folder, server, tmp_path) -> None:
    limit = smallest_limit(folder)
    with pytest.raises(
        ValueError, match=rf"{server.url} .* {limit} bytes, found {limit - 1}: set CL_CACHE_GB="
    ):
        Reader(folder, "train", server.url, Cache(tmp_path / "cache", limit - 1))
    Reader(folder, "train", server.url, Cache(tmp_path / "cache", limit))
