"""Archives: fetched from a real server on loopback, unpacked whole or not at all, and damaged in every way."""

import faulthandler
import fcntl
import gzip
import hashlib
import io
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tarfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from cl.sources import Splits, cifar10, cifar100, imagenet, imagenet100, stl10
from cl.sources._shared import archives
from cl.sources._shared import imagenet as archive
from tests.sources.test_sources import (
    WNIDS,
    add,
    files,
    imagenet_archives,
    imagenet_folders,
    tiny_cifar,
    tiny_stl10,
)

ONCE = 2  # requests a download: torchvision first asks where the address leads


class Quiet(SimpleHTTPRequestHandler):
    """Counts what it is asked for, and says nothing."""

    asked: list[str]

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    """Serves the files of `tmp_path / "served"`."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "served").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served"))
    server.asked = []
    server.handle_error = lambda *_: None  # torchvision hangs up on its first request
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=["cifar10", "cifar100", "stl10"])
def offered(request, server, tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    """One of the three sources, whose tiny archive lies on the server; nothing lies in `tmp_path / "raw"`."""
    kind = request.param
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
    tiny.url = f"http://127.0.0.1:{server.server_port}/{tiny.filename}"
    tiny.tgz_md5 = hashlib.md5(served.read_bytes()).hexdigest()
    monkeypatch.setattr(module, kind.upper(), tiny)
    return SimpleNamespace(
        module=module, archive=tiny, served=served, made=tmp_path / "made", raw=tmp_path / "raw"
    )


def lying(raw: Path) -> set[str]:
    """What lies in the raw folder but the empty lock file."""
    return {path.name for path in raw.iterdir()} - {
        path.name for path in raw.glob(".*.lock") if not path.stat().st_size
    }


def refusal(offered: SimpleNamespace) -> str:
    """The sentence that a source refuses with; nothing is left in the raw folder that was not there before."""
    before = lying(offered.raw) if offered.raw.exists() else set()
    with pytest.raises(ValueError) as error:
        offered.module.splits(None, offered.raw)
    assert lying(offered.raw) == before - {f"{offered.archive.base_folder}.partial"}
    assert "\n" not in str(error.value)
    return str(error.value)


def put(offered: SimpleNamespace) -> str:
    """The remedy that a refusal names."""
    return f"put {offered.archive.filename} (md5 {offered.archive.tgz_md5}) into {offered.raw}, or set CL_RAW to the folder"


def check(offered: SimpleNamespace, found: Splits) -> None:
    """The files are those that the archive was made of."""
    folder = offered.archive.base_folder
    assert lying(offered.raw) - {offered.archive.filename} == {folder}
    assert files(offered.raw / folder) == files(offered.made / folder)
    assert found.classes == ["apple", "bee", "cup", "dog"]


def test_what_is_missing_is_downloaded_once(offered, server, capfd) -> None:
    check(offered, offered.module.splits(None, offered.raw))
    shown = capfd.readouterr().err
    assert f"prepare: downloading {offered.archive.url}\n" in shown
    assert "100%" in shown
    check(offered, offered.module.splits(None, offered.raw))
    assert server.asked == ONCE * [f"/{offered.archive.filename}"]
    assert socket.getdefaulttimeout() is None


def test_an_archive_that_lies_there_is_unpacked(offered, server) -> None:
    offered.raw.mkdir()
    shutil.copy(offered.served, offered.raw)
    check(offered, offered.module.splits(None, offered.raw))
    assert server.asked == []
    assert (offered.raw / offered.archive.filename).exists()


def test_another_archive_is_refused(offered, server) -> None:
    md5 = "0" * 32
    offered.archive.tgz_md5 = md5
    found = hashlib.md5(offered.served.read_bytes()).hexdigest()
    assert refusal(offered).startswith(
        f"{offered.raw}/{offered.archive.base_folder}.partial/{offered.archive.filename} has md5"
    )
    assert refusal(offered).endswith(
        f"has md5 {found}, expected {md5}; {put(offered)} that holds the raw data sets"
    )
    shutil.copy(offered.served, offered.raw)
    asked = len(server.asked)
    assert refusal(offered).startswith(
        f"{offered.raw / offered.archive.filename} has md5 {found}, expected {md5}; put"
    )
    assert len(server.asked) == asked


def test_a_failed_download_says_what_to_put_where(offered) -> None:
    missing = f"no folder {offered.raw / offered.archive.base_folder}, and no file {offered.raw / offered.archive.filename}; "
    offered.served.rename(offered.served.with_suffix(".gone"))
    told = refusal(offered)
    assert told.startswith(missing + put(offered))
    assert f"the download of {offered.archive.url} failed: HTTPError: HTTP Error 404" in told
    with socket.create_server(("127.0.0.1", 0)) as listening:  # a port where nothing listens any more
        offered.archive.url = f"http://127.0.0.1:{listening.getsockname()[1]}/x.tar.gz"
    told = refusal(offered)
    assert told.startswith(missing + put(offered))
    assert "Connection refused" in told


def test_a_server_that_stops_answering_is_given_up(offered, monkeypatch) -> None:
    """One that never answers, and one that stops in the middle of the file."""
    monkeypatch.setattr(archives, "PATIENCE", 0.3)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        offered.archive.url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.tar.gz"
        assert "timed out" in refusal(offered)
    with socket.create_server(("127.0.0.1", 0)) as half:
        offered.archive.url = f"http://127.0.0.1:{half.getsockname()[1]}/x.tar.gz"
        kept: list[socket.socket] = []

        def answer() -> None:
            for _ in range(2):  # where it leads, and the file
                connection, _ = half.accept()
                kept.append(connection)
                connection.recv(4096)
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9999\r\n\r\n" + bytes(100))

        thread = threading.Thread(target=answer)
        thread.start()
        assert "timed out" in refusal(offered)
        thread.join()
        for connection in kept:
            connection.close()
    assert time.monotonic() - began < 10


def test_a_connection_that_breaks_is_told(offered) -> None:
    """The server closes in the middle: the md5 tells."""
    content = offered.served.read_bytes()
    offered.served.write_bytes(content[: len(content) // 2])
    assert "has md5" in refusal(offered)
    offered.served.write_bytes(content)
    check(offered, offered.module.splits(None, offered.raw))


def fetch(archive: tuple, raw: Path) -> None:
    """In a process of its own."""
    base, attributes = archive
    archives.unpacked(type("Tiny", (base,), attributes), raw)


def test_a_killed_download_leaves_nothing_under_a_final_name(offered, monkeypatch) -> None:
    """Killed in the middle of the file; the next call removes what is left and begins anew."""
    attributes = {name: value for name, value in vars(offered.archive).items() if not name.startswith("__")}
    with socket.create_server(("127.0.0.1", 0)) as half:
        url = f"http://127.0.0.1:{half.getsockname()[1]}/x.tar.gz"
        arguments = ((offered.archive.__base__, attributes | {"url": url}), offered.raw)
        child = multiprocessing.get_context("fork").Process(target=fetch, args=arguments)
        child.start()
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
    assert lying(offered.raw) == {left.parent.name}
    check(offered, offered.module.splits(None, offered.raw))


def until(condition) -> None:  # type: ignore[no-untyped-def]
    """Wait for it, a minute at most."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_two_processes_make_it_once(offered, server) -> None:
    """Both want it while a third holds the lock; one downloads, the other finds it made."""
    attributes = {name: value for name, value in vars(offered.archive).items() if not name.startswith("__")}
    offered.raw.mkdir()
    with (offered.raw / f".{offered.archive.base_folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arguments = ((offered.archive.__base__, attributes), offered.raw)
        children = [
            multiprocessing.get_context("fork").Process(target=fetch, args=arguments) for _ in range(2)
        ]
        for child in children:
            child.start()
        time.sleep(0.3)
        assert server.asked == []
        fcntl.flock(lock, fcntl.LOCK_UN)
        for child in children:
            child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert len(server.asked) == ONCE
    check(offered, offered.module.splits(None, offered.raw))


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "link", "fifo", "other/file"])
def test_an_archive_that_would_write_elsewhere_is_refused(name, offered, tmp_path) -> None:
    """Even one of the right md5."""
    with tarfile.open(offered.served, "w:gz") as tar:
        if name == "link":
            special(tar, "link", tarfile.SYMTYPE, "../../evil")
        elif name == "fifo":
            special(tar, "fifo", tarfile.FIFOTYPE)
        else:
            add(tar, name, b"evil")
    offered.archive.tgz_md5 = hashlib.md5(offered.served.read_bytes()).hexdigest()
    assert f"holds no plain folder {offered.archive.base_folder}" in refusal(offered)
    assert not list(tmp_path.rglob("evil"))
    assert not Path("/tmp/evil").exists()


def special(tar: tarfile.TarFile, name: str, kind: bytes, target: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    tar.addfile(member)


# ImageNet's archives


@pytest.fixture
def ilsvrc(tmp_path) -> Path:
    """The folder with the three archives, three classes, inside a raw folder."""
    imagenet_folders(tmp_path / "folders")
    imagenet_archives(tmp_path / "folders", tmp_path / "raw/imagenet")
    return tmp_path / "raw/imagenet"


def listed(root: Path) -> Splits | str:
    """What the archives list, or the sentence that they are refused with; any other error is one of the test too."""
    try:
        return imagenet.splits(SimpleNamespace(classes=3), root.parent)
    except ValueError as error:
        assert type(error) is ValueError
        assert "\n" not in str(error)
        assert str(root) in str(error)
        return str(error)


def content(found: Splits) -> dict[str, tuple[int, bytes]]:
    return {image.key: (image.label, image.read()) for image in [*found.train, *found.val]}


def test_the_whole_archives_list_every_image(ilsvrc) -> None:
    found = listed(ilsvrc)
    assert isinstance(found, Splits)
    assert (len(found.train), len(found.val), found.ignored) == (9, 6, 0)
    assert found.classes == sorted(WNIDS)


@pytest.mark.parametrize("name", [archive.TRAIN, archive.VAL, archive.DEVKIT])
def test_an_archive_cut_off_anywhere_is_refused(name, ilsvrc) -> None:
    """At 40 lengths, and at every border between two members: what is listed is all there is, never a part of it."""
    path = ilsvrc / name
    whole, expected = path.read_bytes(), content(listed(ilsvrc))
    rng = np.random.default_rng(0)
    lengths = {0, 1, 511, 512, 513, len(whole) - 1, *rng.integers(0, len(whole), 35).tolist()}
    if name != archive.DEVKIT:
        with tarfile.open(path) as tar:
            lengths |= {member.offset for member in tar}
    refused = 0
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        found = listed(ilsvrc)
        if isinstance(found, str):
            refused += 1
        else:
            assert content(found) == expected
            assert length > len(whole) - tarfile.RECORDSIZE  # only the padding behind the end mark is cut off
    assert refused > 30


@pytest.mark.parametrize("name", [archive.TRAIN, archive.VAL, archive.DEVKIT])
def test_flipped_bytes_are_refused_or_lose_nothing(name, ilsvrc) -> None:
    """A flip in the bytes of an image is for `verify` to find; one in what holds the images together is found here."""
    path = ilsvrc / name
    whole, expected = path.read_bytes(), content(listed(ilsvrc))
    headers = [m.offset for m in tarfile.open(path)] if name != archive.DEVKIT else [0]
    rng = np.random.default_rng(1)
    places = [int(p) for p in rng.integers(0, len(whole), 25)]
    places += [int(h + o) for h, o in zip(rng.choice(headers, 50), rng.integers(0, 512, 50), strict=True)]
    refused = 0
    for place in places:
        damaged = bytearray(whole)
        damaged[min(place, len(whole) - 1)] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        found = listed(ilsvrc)
        refused += isinstance(found, str)
        if isinstance(found, Splits):
            assert {key: label for key, (label, _) in content(found).items()} == {
                k: v for k, (v, _) in expected.items()
            }
    assert refused > 30


def test_a_damaged_class_inside_the_training_archive_is_refused(ilsvrc) -> None:
    """The outer archive is whole, one of the inner ones is cut off at a border between two images, or elsewhere."""
    with tarfile.open(ilsvrc / archive.TRAIN) as tar:
        inner = {member.name: tar.extractfile(member).read() for member in tar}
    name, whole = next(iter(inner.items()))
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        borders = [member.offset for member in tar]
    for length in [*borders, 100, 700, len(whole) // 2, borders[-1] + 512]:
        with tarfile.open(ilsvrc / archive.TRAIN, "w") as tar:
            for other, stored in inner.items():
                add(tar, other, stored[:length] if other == name else stored)
        told = listed(ilsvrc)
        assert isinstance(told, str), length
        assert "ILSVRC2012_img_train.tar is no complete archive" in told


@pytest.mark.parametrize("name", [archive.TRAIN, archive.VAL])
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE],
    ids=["link", "hard link", "character device", "block device", "pipe", "folder"],
)
def test_only_plain_files_are_taken(name, outer, kind, ilsvrc) -> None:
    good = {
        archive.TRAIN: "n00000001.tar" if outer else "n00000001_1.JPEG",
        archive.VAL: "ILSVRC2012_val_00000001.JPEG",
    }
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        special(tar, good[name], kind, "/etc/passwd")
    stored = memory.getvalue()
    if name == archive.TRAIN and not outer:
        memory = io.BytesIO()
        with tarfile.open(fileobj=memory, mode="w") as tar:
            add(tar, "n00000001.tar", stored)
        stored = memory.getvalue()
    (ilsvrc / name).write_bytes(stored)
    assert f"{name} has {good[name]!r}, which the official archive has not" in listed(ilsvrc)


@pytest.mark.parametrize(
    "bad", ["../n00000001_1.JPEG", "/n00000001_1.JPEG", "n00000002_1.JPEG", "n00000001_1.JPEG\n", "x.txt"]
)
def test_names_inside_a_class_are_its_own(bad, ilsvrc) -> None:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        add(tar, bad, b"image")
    with tarfile.open(ilsvrc / archive.TRAIN, "w") as tar:
        add(tar, "n00000001.tar", memory.getvalue())
    assert f"has {bad!r}, which the official archive has not" in listed(ilsvrc)


def test_a_sparse_file_is_refused(ilsvrc) -> None:
    """It is a plain file to `tarfile`, of as many bytes as it likes, which do not lie in the archive."""
    member = tarfile.TarInfo("ILSVRC2012_val_00000001.JPEG")
    member.pax_headers = {
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": str(2**50),
        "GNU.sparse.realsize": str(2**50),
    }
    with tarfile.open(ilsvrc / archive.VAL, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    assert "has 'ILSVRC2012_val_00000001.JPEG', which the official archive has not" in listed(ilsvrc)


def test_an_archive_that_leads_back_to_itself_is_no_endless_loop(ilsvrc) -> None:
    """A member of negative size, after which some versions of Python read the same member again."""
    block = tarfile.TarInfo("ILSVRC2012_val_00000001.JPEG").tobuf(tarfile.GNU_FORMAT)
    block = bytearray(block)
    block[124:136] = b"\xff" * 4 + (-1024).to_bytes(8, "big", signed=True)
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    (ilsvrc / archive.VAL).write_bytes(bytes(block) * 2 + bytes(1024))
    assert re.search("'ILSVRC2012_val_00000001.JPEG' has -1024 bytes|no complete archive", listed(ilsvrc))


def val_of(root: Path, numbers: list[int]) -> None:
    with tarfile.open(root / archive.VAL, "w") as tar:
        for number in numbers:
            add(tar, f"ILSVRC2012_val_{number:08d}.JPEG", b"image")


@pytest.mark.parametrize(
    "numbers", [[1, 2, 3, 4, 5], [*range(1, 8)], [1, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], []]
)
def test_validation_images_are_as_many_as_the_truth_has_lines(numbers, ilsvrc) -> None:
    val_of(ilsvrc, [1, 2, 3, 4, 5, 6])
    assert isinstance(listed(ilsvrc), Splits)
    val_of(ilsvrc, numbers)
    assert f"{archive.VAL} has {len(numbers)} images, expected number 1 to 6, as the ground truth" in listed(
        ilsvrc
    )


def devkit_of(root: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(root / archive.DEVKIT, "w:gz") as tar:
        for name, stored in members.items():
            add(tar, name, stored)


@pytest.fixture
def devkit(ilsvrc) -> dict[str, bytes]:
    with tarfile.open(ilsvrc / archive.DEVKIT) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_a_devkit_of_other_content_is_refused(ilsvrc, devkit) -> None:
    for name in devkit:
        devkit_of(ilsvrc, {other: stored for other, stored in devkit.items() if other != name})
        assert f"{archive.DEVKIT} has no file {name}" in listed(ilsvrc)
        devkit_of(ilsvrc, devkit | {name: b""})
        assert isinstance(listed(ilsvrc), str)
    for truth in (b"1\n1\n2\n2\n3\n4\n", b"1\n1\n2\n2\n3\nx\n", b"\xff\xfe\n" * 6, b"1\n1\n1\n1\n1\n1.5\n"):
        devkit_of(ilsvrc, devkit | {archive.TRUTH: truth})
        assert "do not fit together or are damaged" in listed(ilsvrc)
    with tarfile.open(ilsvrc / archive.DEVKIT, "w:gz") as tar:
        add(tar, archive.META, devkit[archive.META])
        special(tar, archive.TRUTH, tarfile.SYMTYPE, "/etc/passwd")
    assert f"{archive.DEVKIT} has no file {archive.TRUTH}" in listed(ilsvrc)
    for stored in (
        b"no gzip",
        gzip.compress(b"no tar"),
        gzip.compress(b""),
        b"",
        b"\x1f\x8b",
        os.urandom(5000),
    ):
        (ilsvrc / archive.DEVKIT).write_bytes(stored)
        assert "is no complete archive" in listed(ilsvrc) or "has no file" in listed(ilsvrc)


@pytest.fixture
def silent_crashes():  # type: ignore[no-untyped-def]
    """A child that crashes would write pytest's traceback of it."""
    faulthandler.disable()
    yield
    faulthandler.enable(sys.__stderr__)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("silent_crashes")
def test_a_damaged_table_of_classes_is_refused_or_read(ilsvrc, devkit) -> None:
    """meta.mat, in a devkit that is otherwise whole, overwritten in 60 ways, of which some crash scipy: a sentence, no more."""
    whole, rng = devkit[archive.META], np.random.default_rng(2)
    outcomes = set()
    for number in range(60):
        damaged = bytearray(whole)
        if number % 3 == 0:
            damaged = damaged[: rng.integers(0, len(whole))]
        else:
            for place in rng.integers(0, len(whole), 1 + number % 5):
                damaged[place] = rng.integers(0, 256)
        devkit_of(ilsvrc, devkit | {archive.META: bytes(damaged)})
        outcomes.add(type(listed(ilsvrc)))
    assert outcomes == {Splits, str}


def test_imagenet_has_as_many_classes_as_it_should(ilsvrc, tmp_path) -> None:
    for root in (ilsvrc.parent, tmp_path / "as_folders"):
        if root != ilsvrc.parent:
            imagenet_folders(root / "imagenet")
        with pytest.raises(
            ValueError, match=r"imagenet has 3 classes, expected the 1000 of ImageNet; .* dataset=folder"
        ):
            imagenet.splits(SimpleNamespace(classes=1000), root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the class list .*list.txt is empty: one wnid a line is expected, each once"),
        (b"\n \n", "the class list .*list.txt is empty"),
        (b"n00000001\nn00000002\nn00000001\n", "the class list .*list.txt names n00000001 2 times"),
        (b"n00000001\n\xff\xfe\n", "lacks 1 of 2 classes"),
        (b"n00000001,n00000002\n", "lacks 1 of 1 classes, the first is n00000001,n00000002"),
    ],
)
def test_a_wrong_class_list_is_refused(text, message, ilsvrc, tmp_path) -> None:
    (tmp_path / "list.txt").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        imagenet100.splits(SimpleNamespace(list=str(tmp_path / "list.txt")), ilsvrc.parent)
