"""Shards from a real HTTP server on loopback: equal, ahead, once, within a bounded cache; and failures."""

import fcntl
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

from cl.data.cache import Cache
from cl.data.order import Order, Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from pipeline.support import locations
from pipeline.support.locations import transform
from tests.support.processes import join, start_fork, until


def cache_bytes(cache: Path) -> int:
    """The bytes in a cache, under its lock: otherwise files that come and go would be counted together."""
    if not (cache / "used").exists():
        return 0
    with open(cache / "used") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        total = 0
        for path in cache.rglob("*"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size if path.is_file() else 0
        return total


def shard_bytes(reader: Reader) -> int:
    return sum(shard.bytes for shard in reader.manifest.splits["train"].shards)


def smallest_limit(folder: Path) -> int:
    """The smallest limit that holds two windows of 64 samples."""
    reader = Reader(folder, "train")
    return int(1.05 * shard_bytes(reader) * 2 * 64 / len(reader)) + 1


def assert_reads_equal(reader: Reader, other: Reader, positions: Iterable[int]) -> None:
    for position in positions:
        assert reader.read(position) == other.read(position)


@pytest.mark.parametrize("kind", ["http", "file", "memory"])
def test_remote_shards_equal_local_ones(folder, server, cache, kind) -> None:
    url = {"http": server.url, "file": folder.as_uri(), "memory": "memory://shards"}[kind]
    if kind == "memory":
        fsspec.filesystem("memory").put(str(folder), "/shards", recursive=True)
    for split in ("train", "val"):
        here, there = Reader(folder, split), Reader(folder, split, url, cache)
        for position in range(len(here)):
            assert there.read(position) == here.read(position)
        assert np.array_equal(there.pixels(3), here.pixels(3))


def test_data_workers_read_the_same_batches(folder, server, cache, params) -> None:
    here, there = Reader(folder, "train"), Reader(folder, "train", server.url, cache)
    there.prefetch(np.arange(100))  # its threads and locks do not survive the fork
    there.read(0)
    views, plan = list(params.views.values()), Plan(320, 32, 0)
    local, remote = (TrainSet(reader, transform(params.dataset), views, plan) for reader in (here, there))
    for ours, theirs in zip(remote.batches(0, 10, 2), local.batches(0, 10, 0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.images, theirs.images, strict=True))


def test_with_a_cache_of_two_windows_an_epoch_fetches_every_byte_once(folder, server, tmp_path) -> None:
    limit = smallest_limit(folder)
    reader, local = (
        Reader(folder, "train", server.url, Cache(tmp_path / "cache", limit)),
        Reader(folder, "train"),
    )
    assert limit < 0.5 * shard_bytes(reader)
    server.sent = 0
    sizes: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            sizes.append(cache_bytes(tmp_path / "cache"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    epoch = Order(320, 0, 0)[slice(0, 320)]
    for start in range(0, 320, 16):
        reader.prefetch(epoch[start + 16 : start + 64])
        assert_reads_equal(reader, local, epoch[start : start + 16])
    done.set()
    watcher.join()
    assert len(server.ranges_sent()) == len(set(server.ranges_sent())) >= 40
    assert server.sent <= 1.1 * shard_bytes(reader)
    assert 0.5 * limit < max(sizes) <= limit


def test_processes_share_a_full_cache_within_its_limit(folder, server, tmp_path) -> None:
    """Four processes, each in its own random order, read far more than fits."""
    limit, local = smallest_limit(folder), Reader(folder, "train")
    reader = Reader(folder, "train", server.url, Cache(tmp_path / "cache", limit))

    def work() -> None:
        positions = np.random.default_rng(os.getpid()).permutation(320)[:60]
        reader.prefetch(positions[:30])
        assert_reads_equal(reader, local, positions)

    processes = [start_fork(work) for _ in range(4)]
    largest = 0
    while any(process.is_alive() for process in processes):
        largest = max(largest, cache_bytes(tmp_path / "cache"))
    join(processes)
    assert 0.8 * limit < largest <= limit


def test_no_piece_is_fetched_twice_by_two_processes(folder, server, cache) -> None:
    server.delay = 0.005
    reader, local = Reader(folder, "train", server.url, cache), Reader(folder, "train")

    def work() -> None:
        reader.prefetch(np.arange(320))
        assert_reads_equal(reader, local, range(320))

    join([start_fork(work) for _ in range(3)])
    assert len(server.ranges_sent()) == len(set(server.ranges_sent())) >= 40


def test_reading_ahead_starts_again_after_a_fork(folder, server, cache) -> None:
    reader = Reader(folder, "train", server.url, cache)
    server.go.clear()
    reader.prefetch(np.arange(32))

    def work() -> None:
        reader.prefetch(np.arange(160, 168))
        time.sleep(60)

    until(lambda: len(set(server.ranges_sent())) >= 4)  # all threads of this process are busy
    process = start_fork(work)
    until(lambda: len(set(server.ranges_sent())) >= 5)
    process.kill()
    process.join()


def test_a_killed_process_leaves_no_incomplete_piece(folder, server, tmp_path) -> None:
    limit, local = smallest_limit(folder), Reader(folder, "train")
    cache = Cache(tmp_path / "cache", limit)
    reader = Reader(folder, "train", server.url, cache)
    server.go.clear()
    process = start_fork(reader.read, 0)
    until(lambda: list(cache.folder.rglob("*.partial")) and server.ranges_sent())
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    server.go.set()
    assert len(list(cache.folder.rglob("*.partial"))) == 1
    assert not list(cache.folder.rglob("*.piece"))
    assert_reads_equal(reader, local, range(100, 320))  # what it left makes room first
    assert not list(cache.folder.rglob("*.partial"))
    assert_reads_equal(reader, local, range(100))
    assert cache_bytes(cache.folder) <= limit


def test_the_entry_points_read_from_the_store(folder, server, params, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/shards").mkdir(parents=True)
    for name in ("manifest.json", "val.npy", "val_keys.npy"):
        shutil.copy(folder / name, tmp_path / "data/shards")
    dataset = params.dataset.model_copy(update={"store": server.url})
    reader = locations.reader("val", dataset)
    assert reader.read(0) == Reader(folder, "val").read(0)
    assert (tmp_path / "scratch" / "cache").is_dir()
    monkeypatch.setenv("CL_CACHE_GB", "much")
    with pytest.raises(ValueError, match="CL_CACHE_GB=much: give a number of gigabytes"):
        locations.reader("val", dataset)
    monkeypatch.delenv("CL_CACHE_GB")
    elsewhere = params.dataset.model_copy(update={"store": str(folder)})
    assert locations.reader("val", elsewhere).read(1) == reader.read(1)


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


def test_a_protocol_whose_package_is_missing_names_the_package(folder, cache, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ValueError, match=r"gs://bucket needs a missing package: .* \(pip install"):
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
