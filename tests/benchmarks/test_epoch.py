"""The replay of an epoch against processes that read real shards from a real server."""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image as Picture

from benchmarks import epoch
from cl.data import order, remote, sets
from cl.data.cache import Cache
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.sources._shared.class_folders import class_folders
from tests.support.server import Server
from tests.support.tiny import write_shards

IMAGES, BATCH = 300, 12


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 8 chunks of 8 images, and 32 images ahead."""
    for module in (order, remote):
        monkeypatch.setattr(module, "CHUNK", 8)
        monkeypatch.setattr(module, "WINDOW", 8)
    monkeypatch.setattr(sets, "PREFETCHED", 32)


@pytest.fixture
def server(tmp_path: Path, small_windows: None) -> Iterator[Server]:
    """Shards of 50 images, which end within a chunk."""
    rng = np.random.default_rng(0)
    for split, count in (("train", IMAGES), ("val", 1)):
        (tmp_path / "raw" / split / "any").mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 255, (4 + number % 9, 16, 3), dtype=np.uint8)
            Picture.fromarray(pixels).save(tmp_path / "raw" / split / "any" / f"{number:03d}.png")
    write_shards(class_folders(tmp_path / "raw"), tmp_path / "shards", 50)
    server = Server(tmp_path / "shards")
    yield server
    server.close()


def read_epoch(readers: list[Reader], node: int, nodes: int) -> None:
    """What the processes of a node do in one epoch, in step."""
    ranks = nodes * len(readers)
    plans = [Plan(IMAGES, BATCH, 0, node * len(readers) + rank, ranks) for rank in range(len(readers))]
    for step in range(plans[0].steps_per_epoch):
        ahead = range(step, min(step + 1 + sets.PREFETCHED // BATCH, plans[0].steps_per_epoch))
        for plan, reader in zip(plans, readers, strict=True):
            reader.prefetch(np.concatenate([plan.step(later)[1] for later in ahead]))
            while reader._files._running:
                time.sleep(0.001)
        for plan, reader in zip(plans, readers, strict=True):
            for position in plan.step(step)[1].tolist():
                reader.read(position)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_replay_sends_the_requests_of_real_processes(server, tmp_path, nodes) -> None:
    sent = []
    for node in range(nodes):
        server.requests.clear()
        cache = Cache(tmp_path / f"cache{node}", 10**9)
        readers = [Reader(tmp_path / "shards", "train", server.url, cache) for _ in range(2)]
        read_epoch(readers, node, nodes)
        spans = [span.removeprefix("bytes=").split("-") for _, span in server.ranges_sent()]
        sent.append([len(spans), sum(1 + int(last) - int(first) for first, last in spans)])
    pieces, plan = epoch.Pieces(readers[0]._files), Plan(IMAGES, BATCH, 0)
    (found,) = epoch.replay(plan, pieces, [nodes], {10**9: plan.steps_per_epoch})
    assert found.needed().tolist() == sent
    (replayed,) = found.caches
    assert [replayed.requests, replayed.used] == sent[0]
    assert (replayed.again, replayed.evictions, replayed.steps) == (0, 0, plan.steps_per_epoch)


def test_the_cache_evicts_what_the_real_one_does(tmp_path) -> None:
    """Pieces of different sizes are announced and read at random; a third of them fit."""
    rng, own = np.random.default_rng(0), 20  # bytes of the real cache's own file
    sizes = rng.integers(100, 400, 60)
    real, replayed = Cache(tmp_path / "cache", 5080 + own), epoch.NodeCache(5080, sizes)
    fetched, clock = [], itertools.count(1)
    for _ in range(100):
        announced, read = rng.permutation(60)[:4].tolist(), rng.permutation(60)[:3].tolist()
        replayed.step(announced, read)
        missing = [piece for piece in announced if not (real.folder / f"{piece}.piece").exists()]
        for piece, use in [
            *((piece, real.fill) for piece in missing),
            *((piece, real.open) for piece in read),
        ]:
            size = int(sizes[piece])
            file = use(f"{piece}.piece", size, lambda: fetched.append(piece) or bytes(size))  # noqa: B023
            if file is not None:
                os.close(file)
            os.utime(
                real.folder / f"{piece}.piece", ns=(0, next(clock))
            )  # the kernel's clock ticks too slowly
        kept = {int(path.stem) for path in real.folder.glob("*.piece")}
        assert kept == set(replayed._kept)
    assert replayed.requests == len(fetched)
    assert replayed.again == len(fetched) - len(set(fetched)) > 0


def test_the_figures_of_a_small_epoch() -> None:
    result = CliRunner().invoke(epoch.main, ["200000", "--batch", "1024", "--nodes", "1", "--nodes", "2"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("200,000 images, 0.022 TB in 3,140 pieces; 195 steps of 1,024\n")
    result = CliRunner().invoke(epoch.main, ["200000", "--batch", "100"])
    assert "--batch=100 must be a multiple of the GPUs on 64 nodes" in result.output
