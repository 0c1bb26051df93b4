"""torchvision's archives: downloaded from a server on loopback, and unpacked completely or not at all."""

import fcntl
import hashlib
import shutil
import signal
import socket
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
from tests.support.archives import CLASSES, add_member, add_special, tiny_cifar, tiny_stl10
from tests.support.pictures import digest
from tests.support.processes import join, start_fork, until
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
        config=SimpleNamespace(kind=kind, first=None),
        archive=tiny,
        served=served,
        made=tmp_path / "made",
        raw=tmp_path / "raw",
    )


def names_in(raw: Path) -> set[str]:
    """The names in the raw folder, except the empty lock file."""
    return {path.name for path in raw.iterdir()} - {
        path.name for path in raw.glob(".*.lock") if not path.stat().st_size
    }


def refusal(offered: SimpleNamespace) -> str:
    """The message of a source that refuses; it leaves nothing new in the raw folder."""
    before = names_in(offered.raw) if offered.raw.exists() else set()
    with pytest.raises(ValueError) as error:
        offered.module.splits(offered.config, offered.raw)
    assert names_in(offered.raw) == before - {f"{offered.archive.base_folder}.partial"}
    assert "\n" not in str(error.value)
    return str(error.value)


def remedy(offered: SimpleNamespace) -> str:
    """The remedy in the messages."""
    archive = offered.archive
    return f"put {archive.filename} (md5 {archive.tgz_md5}) into {offered.raw}, or set CL_RAW to the folder"


def assert_unpacked(offered: SimpleNamespace, found: Splits) -> None:
    """The files are those that the archive was made from."""
    folder = offered.archive.base_folder
    assert names_in(offered.raw) - {offered.archive.filename} == {folder}
    assert digest(offered.raw / folder) == digest(offered.made / folder)
    assert found.classes == CLASSES


@pytest.mark.parametrize("offered", ["cifar10", "cifar100", "stl10"], indirect=True)
def test_a_missing_archive_is_downloaded_once(offered, server, capfd) -> None:
    assert_unpacked(offered, offered.module.splits(offered.config, offered.raw))
    shown = capfd.readouterr().err
    assert f"prepare: downloading {offered.archive.url}\n" in shown
    assert "100%" in shown
    assert_unpacked(offered, offered.module.splits(offered.config, offered.raw))
    assert [path for _, path, _ in server.requests] == REQUESTS * [f"/{offered.archive.filename}"]
    assert socket.getdefaulttimeout() is None


def test_an_archive_in_the_raw_folder_is_not_downloaded(offered, server) -> None:
    offered.raw.mkdir()
    shutil.copy(offered.served, offered.raw)
    assert_unpacked(offered, offered.module.splits(offered.config, offered.raw))
    assert server.requests == []
    assert (offered.raw / offered.archive.filename).exists()


def test_an_archive_with_another_md5_is_refused(offered, server) -> None:
    """A truncated download, then the same file in the raw folder."""
    md5, content = offered.archive.tgz_md5, offered.served.read_bytes()
    offered.served.write_bytes(content[: len(content) // 2])
    found = hashlib.md5(offered.served.read_bytes()).hexdigest()
    expected = f"{offered.archive.filename} has md5 {found}, expected {md5}; {remedy(offered)}"
    assert expected in refusal(offered)
    shutil.copy(offered.served, offered.raw)
    asked = len(server.requests)
    assert expected in refusal(offered)
    assert len(server.requests) == asked


def test_a_failed_download_says_what_to_put_where(offered) -> None:
    folder, file = offered.raw / offered.archive.base_folder, offered.raw / offered.archive.filename
    missing = f"no folder {folder}, and no file {file}; {remedy(offered)}"
    offered.served.rename(offered.served.with_suffix(".gone"))
    message = refusal(offered)
    assert message.startswith(missing)
    assert f"{offered.archive.url} failed: HTTPError: HTTP Error 404" in message
    with socket.create_server(("127.0.0.1", 0)) as listening:  # a port that is closed afterwards
        offered.archive.url = f"http://127.0.0.1:{listening.getsockname()[1]}/x.tar.gz"
    message = refusal(offered)
    assert message.startswith(missing)
    assert "Connection refused" in message


def test_a_server_that_stops_answering_times_out(offered, server, monkeypatch) -> None:
    """In the middle of the file."""
    monkeypatch.setattr(archives, "TIMEOUT", 0.3)
    server.go.clear()
    assert "timed out" in refusal(offered)


def fetch(archive: tuple, raw: Path) -> None:
    """Unpack in another process, which needs the attributes of the tiny archive."""
    base, attributes = archive
    tqdm.set_lock(threading.RLock())  # forks share the usual one, and a killed process would keep it
    archives.ensure_unpacked(type("Tiny", (base,), attributes), raw)


def test_a_killed_download_leaves_nothing_under_a_final_name(offered, monkeypatch) -> None:
    """Killed in the middle of the file; the next call removes the remains and starts over."""
    attributes = {name: value for name, value in vars(offered.archive).items() if not name.startswith("__")}
    with socket.create_server(("127.0.0.1", 0)) as half:
        url = f"http://127.0.0.1:{half.getsockname()[1]}/x.tar.gz"
        child = start_fork(fetch, (offered.archive.__base__, attributes | {"url": url}), offered.raw)
        connections = [half.accept()[0]]
        connections[0].recv(4096)
        connections[0].sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 99999\r\n\r\n")
        connections[0].close()
        connections.append(half.accept()[0])
        connections[1].recv(4096)
        connections[1].sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 99999\r\n\r\n" + bytes(50_000))
        left = offered.raw / f"{offered.archive.base_folder}.partial" / offered.archive.filename
        until(lambda: left.exists())
        child.kill()
        child.join()
        connections[1].close()
    assert child.exitcode == -signal.SIGKILL
    assert names_in(offered.raw) == {left.parent.name}
    assert_unpacked(offered, offered.module.splits(offered.config, offered.raw))


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


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "link", "fifo", "other/file"])
def test_an_archive_that_would_write_elsewhere_is_refused(name, offered, tmp_path) -> None:
    """Even if it has the right md5."""
    with tarfile.open(offered.served, "w:gz") as tar:
        if name == "link":
            add_special(tar, f"{offered.archive.base_folder}/link", tarfile.SYMTYPE, "../../evil")
        elif name == "fifo":
            add_special(tar, f"{offered.archive.base_folder}/fifo", tarfile.FIFOTYPE)
        else:
            add_member(tar, name, b"evil")
    offered.archive.tgz_md5 = hashlib.md5(offered.served.read_bytes()).hexdigest()
    assert f"should contain only the folder {offered.archive.base_folder}" in refusal(offered)
    assert not list(tmp_path.rglob("evil"))
    assert not Path("/tmp/evil").exists()
