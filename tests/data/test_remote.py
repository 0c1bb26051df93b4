"""Shards behind a real HTTP server, on loopback."""

import fcntl
import importlib.util
import multiprocessing
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image as Picture

from cl.data import order, remote
from cl.data.cache import Cache
from cl.data.order import Order, Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.sources._shared.class_folders import class_folders
from pipeline import locations
from tests.support.tiny import write_shards

FORK = multiprocessing.get_context("fork")
LARGE = 10**9


class Handler(SimpleHTTPRequestHandler):
    """GET and HEAD with ranges, as its server's switches say."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        here, path = self.server, Path(self.server.folder, self.path.lstrip("/"))
        time.sleep(here.delay)
        with here.lock:
            here.requests.append((self.command, self.path, self.headers.get("Range", "")))
            here.failures, failing = max(0, here.failures - 1), here.failures > 0
        if failing or not path.is_file():
            self.send_error(503 if failing else 404)
            return
        content, status = path.read_bytes(), 200
        headers = {"ETag": f'"{path.stat().st_mtime_ns}"'}
        if here.ranges and "Range" in self.headers:
            start, stop = (int(x) for x in self.headers["Range"].removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {start}-{stop}/{len(content)}"
            content, status = content[start : stop + 1], 206
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            with here.lock:
                here.sent += len(content)
            self.wfile.write(content[: len(content) // 2])
            here.go.wait(60)
            here.cuts, self.close_connection = max(0, here.cuts - 1), here.cuts > 0
            if self.close_connection:
                return
            self.wfile.write(content[len(content) // 2 :])


class Server(ThreadingHTTPServer):
    """A folder at `url`."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.url = folder, f"http://127.0.0.1:{self.server_port}"
        self.lock, self.go = threading.Lock(), threading.Event()
        self.go.set()  # else answers stop half-way
        self.delay, self.failures, self.cuts, self.ranges, self.sent = 0.0, 0, 0, True, 0
        self.requests: list[tuple[str, str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True, args=(0.02,)).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed."""

    def pieces(self) -> list[tuple[str, str]]:
        """The ranges that were sent."""
        return [(path, extent) for command, path, extent in self.requests if command == "GET" and extent]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 training images of some kilobytes in 7 shards, and 12 to validate."""
    root, rng = tmp_path_factory.mktemp("remote"), np.random.default_rng(0)
    for split, count in (("train", 160), ("val", 6)):
        for label in ("cat", "dog"):
            (root / "raw" / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (20 + number % 30, 40, 3), dtype=np.uint8)
                Picture.fromarray(pixels).save(root / "raw" / split / label / f"{number}.png")
    write_shards(class_folders(root / "raw"), root / "shards", 50)
    return root / "shards"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 8 chunks of 8 samples; short waits."""
    for module in (order, remote):
        monkeypatch.setattr(module, "CHUNK", 8)
        monkeypatch.setattr(module, "WINDOW", 8)
    monkeypatch.setattr(remote, "WAITS", (0.01, 0.02, 0.04))


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.go.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def local_part(folder: Path, server: Server, tmp_path: Path) -> Path:
    """A copy of the folder, for a test that changes it."""
    server.folder = tmp_path / "own"
    return shutil.copytree(folder, server.folder)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", LARGE)


def size(cache: Path) -> int:
    """The bytes in a cache at one moment: its lock is held meanwhile, or files that come and go would be counted together."""
    with open(cache / "used") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        total = 0
        for path in cache.rglob("*"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size if path.is_file() else 0
        return total


def shard_bytes(reader: Reader) -> int:
    return sum(shard.bytes for shard in reader.manifest.splits["train"].shards)


def two_windows(folder: Path) -> int:
    """A limit that is just large enough."""
    reader = Reader(folder, "train")
    return int(1.05 * shard_bytes(reader) * 2 * 64 / len(reader)) + 1


class Everything:
    """The samples of a reader, by position."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __getitem__(self, position: int) -> bytes:
        return self.reader.read(position)


def alive(count: int, function, *arguments: object) -> list[multiprocessing.Process]:
    processes = [FORK.Process(target=function, args=arguments, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    return processes


def finish(processes: list) -> None:
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def read_all(reader: Reader, positions, expected: "Everything") -> None:
    assert [reader.read(p) for p in positions] == [expected[p] for p in positions]


@pytest.mark.parametrize("kind", ["http", "file", "memory"])
def test_what_is_read_is_what_lies_there(folder, server, cache, kind) -> None:
    url = {"http": server.url, "file": folder.as_uri(), "memory": "memory://shards"}[kind]
    if kind == "memory":
        fsspec.filesystem("memory").put(str(folder), "/shards", recursive=True)
    for split in ("train", "val"):
        here, there = Reader(folder, split), Reader(url, split, cache)
        assert there.manifest == here.manifest
        assert np.array_equal(there.index, here.index)
        assert np.array_equal(there.keys, here.keys)
        for position in range(len(here)):
            assert there.read(position) == here.read(position)
        assert np.array_equal(there.pixels(3), here.pixels(3))


def test_data_workers_read_the_same(folder, server, cache, params) -> None:
    here, there = Reader(folder, "train"), Reader(server.url, "train", cache)
    there.ahead(np.arange(100))  # threads and their locks do not come along
    there.read(0)
    local, remote = (
        TrainSet(reader, list(params.views.values()), Plan(320, 32, 0)) for reader in (here, there)
    )
    for ours, theirs in zip(remote.batches(0, 10, 2), local.batches(0, 10, 0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.images, theirs.images, strict=True))
    copy = pickle.loads(pickle.dumps(there))
    copy.ahead(np.arange(100))
    assert copy.read(0) == here.read(0)


def test_an_epoch_fetches_every_byte_once_in_a_cache_of_two_windows(folder, server, tmp_path) -> None:
    limit = two_windows(folder)
    reader, local = Reader(server.url, "train", Cache(tmp_path / "cache", limit)), Reader(folder, "train")
    assert limit < 0.5 * shard_bytes(reader)
    server.sent, largest, done = 0, [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            largest[0] = max(largest[0], size(tmp_path / "cache"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    epoch = Order(320, 0, 0)[slice(0, 320)]
    for start in range(0, 320, 16):
        reader.ahead(epoch[start + 16 : start + 64])
        read_all(reader, epoch[start : start + 16], Everything(local))
    done.set()
    watcher.join()
    assert len(server.pieces()) == len(set(server.pieces())) >= 40
    assert server.sent <= 1.1 * shard_bytes(reader)
    assert 0.5 * limit < largest[0] <= limit


def test_processes_share_a_full_cache_within_its_limit(folder, server, tmp_path) -> None:
    """Four processes that read everything in their own random order, far beyond what fits."""
    limit, local = two_windows(folder), Reader(folder, "train")
    reader = Reader(server.url, "train", Cache(tmp_path / "cache", limit))

    def work() -> None:
        positions = np.random.default_rng(os.getpid()).permutation(320)[:60]
        reader.ahead(positions[:30])
        read_all(reader, positions, Everything(local))

    processes = alive(4, work)
    largest = 0
    while any(process.is_alive() for process in processes):
        largest = max(largest, size(tmp_path / "cache"))
    finish(processes)
    assert 0.8 * limit < largest <= limit


def test_no_piece_is_fetched_twice_by_two_processes(folder, server, cache) -> None:
    server.delay = 0.005
    reader, local = Reader(server.url, "train", cache), Reader(folder, "train")

    def work() -> None:
        reader.ahead(np.arange(320))
        read_all(reader, range(320), Everything(local))

    finish(alive(3, work))
    assert len(server.pieces()) == len(set(server.pieces())) >= 40


def test_reading_ahead_overlaps_the_waits(server, tmp_path) -> None:
    seconds = []
    for ahead in (False, True):
        reader = Reader(server.url, "train", Cache(tmp_path / str(ahead), LARGE))
        server.delay = 0.05
        began = time.monotonic()
        for start in range(0, 96, 8):
            if ahead:
                reader.ahead(np.arange(start, 96))
            for position in range(start, start + 8):
                reader.read(position)
        seconds.append(time.monotonic() - began)
        server.delay = 0.0
    assert seconds[0] > 2 * seconds[1]


def test_reading_ahead_begins_anew_after_a_fork(server, cache) -> None:
    reader = Reader(server.url, "train", cache)
    server.go.clear()
    reader.ahead(np.arange(32))

    def work() -> None:
        reader.ahead(np.arange(160, 168))
        time.sleep(60)

    def asked(count: int) -> None:
        began = time.monotonic()
        while len(set(server.pieces())) < count:
            assert time.monotonic() < began + 60
            time.sleep(0.01)

    asked(4)  # all threads of this process are busy
    (process,) = alive(1, work)
    asked(5)
    process.kill()
    process.join()


def test_failures_are_met_with_patience_and_then_a_sentence(folder, server, cache) -> None:
    reader, local = Reader(server.url, "train", cache), Reader(folder, "train")
    server.failures = 5  # HEAD and the GET that replaces it, twice, then the HEAD of the third attempt
    assert reader.read(0) == local.read(0)
    server.cuts = 2  # half an answer
    assert reader.read(20) == local.read(20)
    server.failures = LARGE
    sentence = rf"{server.url}/train-000001.tar cannot be read: ClientResponseError: 503.*; check the address, the network"
    with pytest.raises(ValueError, match=sentence):
        reader.read(60)
    server.failures = 0
    assert reader.read(60) == local.read(60)
    with pytest.raises(ValueError, match=r"127.0.0.1:1/manifest.json cannot be read: ConnectionRefusedError"):
        Reader("http://127.0.0.1:1", "train", cache)


def test_what_is_missing_is_told_at_once(own, server, cache) -> None:
    with pytest.raises(ValueError, match=rf"{server.url}/no/manifest.json cannot be read: FileNotFoundError"):
        Reader(f"{server.url}/no", "train", cache)
    reader = Reader(server.url, "train", cache)
    (own / "train-000000.tar").unlink()
    count = len(server.requests)
    with pytest.raises(
        ValueError, match=rf"{server.url}/train-000000.tar cannot be read: ClientResponseError: 404"
    ):
        reader.read(0)
    assert len(server.requests) <= count + 2


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_protocol_whose_package_is_missing_is_told(cache) -> None:
    with pytest.raises(
        ValueError, match=r"s3://bucket/manifest.json needs .*: Install s3fs to access S3 \(pip install s3fs"
    ):
        Reader("s3://bucket", "train", cache)


def test_a_server_without_ranges_is_refused(server, cache) -> None:
    reader = Reader(server.url, "train", cache)
    server.ranges = False
    with pytest.raises(
        ValueError, match=r"train-000000.tar cannot be read in parts, which its server has to allow"
    ):
        reader.read(0)


def test_a_changed_shard_is_noticed(own, server, cache) -> None:
    """Also by a process that starts later, with pieces of the earlier version in the cache."""
    reader = Reader(server.url, "train", cache)
    reader.read(0)
    os.utime(own / "train-000000.tar", ns=(1, 1))
    for late in (reader, Reader(server.url, "train", cache)):
        with pytest.raises(
            ValueError,
            match=r'train-000000.tar was changed .* and is "1"\): upload data/shards again, remove',
        ):
            late.read(20)
    os.truncate(own / "train-000001.tar", 1000)
    with pytest.raises(
        ValueError, match=r"train-000001.tar has 1000 bytes, its manifest says \d+: upload data/shards again"
    ):
        reader.read(60)


def test_an_index_of_other_shards_is_refused(own, server, cache) -> None:
    np.save(own / "train.npy", np.load(own / "train.npy")[:-1])
    with pytest.raises(ValueError, match=r"train.npy with its 319 rows does not go with the manifest"):
        Reader(server.url, "train", cache)


def test_a_cache_that_is_too_small_is_refused(folder, server, tmp_path) -> None:
    limit = two_windows(folder)
    with pytest.raises(
        ValueError,
        match=rf"too small for {server.url}: .* at least {limit} bytes are needed: set CL_CACHE_GB=",
    ):
        Reader(server.url, "train", Cache(tmp_path / "cache", limit - 1))
    Reader(server.url, "train", Cache(tmp_path / "cache", limit))


def test_a_killed_process_leaves_nothing_half(folder, server, tmp_path) -> None:
    limit, local = two_windows(folder), Reader(folder, "train")
    cache = Cache(tmp_path / "cache", limit)
    reader = Reader(server.url, "train", cache)
    server.go.clear()
    (process,) = alive(1, reader.read, 0)
    while not list(cache.folder.rglob("*.partial")) or not server.pieces():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    server.go.set()
    assert len(list(cache.folder.rglob("*.partial"))) == 1
    assert not list(cache.folder.rglob("*.piece"))
    read_all(reader, range(100, 320), Everything(local))  # what it left makes room first
    assert not list(cache.folder.rglob("*.partial"))
    read_all(reader, range(100), Everything(local))
    assert size(cache.folder) <= limit


def test_a_cache_counts_again_what_others_removed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("cl.data.cache.PATIENCE", 0.1)
    small = Cache(tmp_path / "small", 1000)
    for name in ("a", "b", "c"):
        os.close(small.open(f"{name}.piece", 300, lambda: bytes(300)))
    (small.folder / "b.piece").unlink()
    os.close(small.open("d.piece", 300, lambda: bytes(300)))
    assert {path.name for path in small.folder.glob("*.piece")} == {"a.piece", "c.piece", "d.piece"}
    os.close(small.open("a.piece", 300, lambda: bytes(300)))
    os.close(small.open("e.piece", 300, lambda: bytes(300)))
    assert {path.name for path in small.folder.glob("*.piece")} == {"a.piece", "d.piece", "e.piece"}
    with pytest.raises(
        ValueError, match="may hold 1000 bytes and is full of what is needed now: set CL_CACHE_GB higher"
    ):
        small.open("f.piece", 990, lambda: bytes(990))
    assert not (small.folder / "f.piece.partial").exists()


def test_who_finds_no_room_waits_for_those_who_have_it(tmp_path) -> None:
    small, go = Cache(tmp_path / "small", 1000), threading.Event()

    def slow() -> bytes:
        go.wait()
        return bytes(700)

    holder, passer = (
        threading.Thread(target=small.fill, args=("a.piece", 700, slow), kwargs={"wait": wait}, daemon=True)
        for wait in (True, False)
    )
    holder.start()
    while [path.stat().st_size for path in small.folder.glob("*.partial")] != [700]:
        time.sleep(0.001)
    passer.start()
    passer.join(10)
    assert not passer.is_alive()
    with pytest.raises(ValueError, match="full of what is needed now"):
        small.fill("b.piece", 700, lambda: bytes(700), wait=False)
    threading.Timer(0.2, go.set).start()
    os.close(small.open("b.piece", 700, lambda: bytes(700)))
    holder.join()
    assert [path.name for path in small.folder.glob("*.piece")] == ["b.piece"]


def test_the_entry_points_read_where_cl_shards_says(folder, server, tmp_path, monkeypatch) -> None:

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CL_SHARDS", server.url)
    reader = locations.reader("val")
    assert reader.read(0) == Reader(folder, "val").read(0)
    assert (tmp_path / "scratch" / "cache").is_dir()
    assert locations.manifest() == (folder / "manifest.json").read_bytes()
    shutil.copytree(folder, tmp_path / "data" / "shards")
    locations.reader("val")
    (tmp_path / "data" / "shards" / "manifest.json").write_text("{}")
    with pytest.raises(
        ValueError,
        match=rf"CL_SHARDS={server.url} contains other shards than data/shards, which DVC tracks as",
    ):
        locations.reader("val")
    monkeypatch.setenv("CL_CACHE_GB", "much")
    with pytest.raises(ValueError, match="CL_CACHE_GB=much: give a number of gigabytes"):
        locations.reader("val")
