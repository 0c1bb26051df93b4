"""Shards behind a real HTTP server, on loopback."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from cl.data import order, remote
from cl.data.cache import Cache
from cl.runtime import stores
from cl.sources._shared.class_folders import class_folders
from tests.support.server import Server
from tests.support.tiny import write_shards


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 training images of a few kilobytes in 7 shards, and 12 validation images."""
    root, rng = tmp_path_factory.mktemp("remote"), np.random.default_rng(0)
    for split, count in (("train", 160), ("val", 6)):
        for label in ("cat", "dog"):
            (root / "raw" / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (20 + number % 30, 40, 3), dtype=np.uint8)
                Picture.fromarray(pixels).save(root / "raw" / split / label / f"{number}.png")
    write_shards(class_folders(root / "raw"), root / "shards", 50)
    return root / "shards"


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 8 chunks of 8 samples, and short waits."""
    for module in (order, remote):
        monkeypatch.setattr(module, "CHUNK", 8)
        monkeypatch.setattr(module, "WINDOW", 8)
    monkeypatch.setattr(stores, "WAITS", (0.01, 0.02, 0.04))


@pytest.fixture
def server(folder: Path, small_windows: None) -> Iterator[Server]:
    """A server of the folder."""
    server = Server(folder)
    yield server
    server.close()


@pytest.fixture
def own_folder(folder: Path, server: Server, tmp_path: Path) -> Path:
    """A copy of the folder, behind the server, for a test that changes it."""
    server.folder = tmp_path / "own"
    return shutil.copytree(folder, server.folder)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache with room for everything."""
    return Cache(tmp_path / "cache", 10**9)
