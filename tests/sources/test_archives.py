"""torchvision's archives: downloaded from a server on loopback, and unpacked completely or not at all."""

import fcntl
import hashlib
import shutil
import tarfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torchvision import datasets
from torchvision.datasets import CIFAR10, CIFAR100
from tqdm import tqdm

from cl.images.image import Splits
from cl.sources import cifar10, cifar100, stl10
from cl.sources._shared import archives
from tests.support.archives import CLASSES, contents, tiny_cifar, tiny_stl10
from tests.support.processes import join, start_fork
from tests.support.server import Server

REQUESTS = 2  # per download: torchvision first asks where the URL leads


@pytest.fixture
def server(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    """Serves the files of `tmp_path / "served"`."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "served").mkdir()
    server = Server(tmp_path / "served")
    yield server
    server.close()


@pytest.fixture
def offered(request, server, tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    """STL-10, or another source, with its tiny archive on the server and nothing in `tmp_path / "raw"`."""
    kind = getattr(request, "param", "stl10")
    makers = {
        "cifar10": lambda: tiny_cifar(CIFAR10, tmp_path / "made", "labels"),
        "cifar100": lambda: tiny_cifar(CIFAR100, tmp_path / "made", "fine_labels"),
        "stl10": lambda: tiny_stl10(tmp_path / "made"),
    }
    module = {"cifar10": cifar10, "cifar100": cifar100, "stl10": stl10}[kind]
    tiny = makers[kind]()
    served = tmp_path / "served" / tiny.filename
    with tarfile.open(served, "w:gz") as tar:
        tar.add(tmp_path / "made" / tiny.base_folder, tiny.base_folder)
    tiny.url = f"{server.url}/{tiny.filename}"
    tiny.tgz_md5 = hashlib.md5(served.read_bytes()).hexdigest()
    monkeypatch.setattr(datasets, kind.upper(), tiny)
    return SimpleNamespace(
        module=module,
        config=SimpleNamespace(first=None),
        archive=tiny,
        served=served,
        made=tmp_path / "made",
        raw=tmp_path / "raw",
    )


def names_in(raw: Path) -> set[str]:
    """The names in the raw folder, except the empty lock file."""
    return {path.name for path in raw.iterdir()} - {path.name for path in raw.glob(".*.lock")}


def assert_unpacked(offered: SimpleNamespace, found: Splits) -> None:
    """The files are those that the archive was made from."""
    folder = offered.archive.base_folder
    assert names_in(offered.raw) == {folder, offered.archive.filename}
    assert contents(offered.raw / folder) == contents(offered.made / folder)
    assert found.classes == CLASSES


@pytest.mark.parametrize("offered", ["cifar10", "cifar100", "stl10"], indirect=True)
def test_a_missing_archive_is_downloaded_once(offered, server) -> None:
    for _ in range(2):
        assert_unpacked(offered, offered.module.splits(offered.config, offered.raw))
    assert [path for _, path, _ in server.requests] == REQUESTS * [f"/{offered.archive.filename}"]


def test_an_archive_in_the_raw_folder_is_not_downloaded(offered, server) -> None:
    offered.raw.mkdir()
    shutil.copy(offered.served, offered.raw)
    assert_unpacked(offered, offered.module.splits(offered.config, offered.raw))
    assert server.requests == []


@pytest.mark.parametrize("failure", ["truncated", "gone"])
def test_a_failed_download_says_what_to_put_where(failure, offered) -> None:
    folder, md5, content = offered.raw / "stl10_binary", offered.archive.tgz_md5, offered.served.read_bytes()
    if failure == "gone":
        offered.served.unlink()
    else:
        offered.served.write_bytes(content[: len(content) // 2])
    message = f"no folder {folder}, and .* failed .*; put {offered.archive.filename} .md5 {md5}. into"
    with pytest.raises(ValueError, match=message):
        offered.module.splits(offered.config, offered.raw)
    assert not folder.exists()
    offered.served.write_bytes(content)
    assert_unpacked(offered, offered.module.splits(offered.config, offered.raw))


def fetch(archive: tuple, raw: Path) -> None:
    """Unpack in another process, which needs the attributes of the tiny archive."""
    base, attributes = archive
    tqdm.set_lock(threading.RLock())  # forks share the usual one, and a killed process would keep it
    archives.ensure_unpacked(type("Tiny", (base,), attributes), raw)


def test_two_processes_download_an_archive_once(offered, server) -> None:
    """Both wait for a third that holds the lock; then one downloads, and the other finds the result."""
    attributes = {name: value for name, value in vars(offered.archive).items() if not name.startswith("__")}
    offered.raw.mkdir()
    with (offered.raw / f".{offered.archive.base_folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        archive = offered.archive.__base__, attributes
        children = [start_fork(fetch, archive, offered.raw) for _ in range(2)]
        time.sleep(0.3)
        assert server.requests == []
        fcntl.flock(lock, fcntl.LOCK_UN)
        join(children)
    assert len(server.requests) == REQUESTS
    assert_unpacked(offered, offered.module.splits(offered.config, offered.raw))
