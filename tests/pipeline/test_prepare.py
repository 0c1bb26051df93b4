"""The prepare stage, interrupted by signals, killed workers, a concurrent run and a full disk."""

import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import sklearn.datasets  # noqa: F401  once, before forking

import cl.shards.scenes  # noqa: F401
from benchmarks.parameters import parameters
from cl.images.image import Splits
from cl.runtime import machine
from cl.shards.manifest import Manifest, Shard, Split
from cl.sources._shared.class_folders import class_folders
from pipeline import prepare
from pipeline.prepare import main
from tests.support.pictures import (
    digest,
    picture_file,
    shard_states,
    tree,
    without_heic,
)
from tests.support.processes import start_fork, until
from tests.support.project import ROOT, compose
from tests.support.tiny import write_shards


class Stage:
    """`python -m pipeline.prepare` in its own folder, forked to avoid importing everything again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.started: list[BaseProcess] = []

    def start(self, limit: int = resource.RLIM_INFINITY, log: str = "log") -> BaseProcess:
        self.started.append(start_fork(self._run, limit, log))
        return self.started[-1]

    def _run(self, limit: int, log: str) -> None:
        os.setsid()
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # background jobs of a shell start without it
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # workers need more than one core
        os.chdir(self.folder)
        os.environ["CL_RAW"] = "raw"
        sys.stdout = sys.stderr = open(log, "w", buffering=1)
        os.dup2(sys.stderr.fileno(), 1)
        os.dup2(sys.stderr.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        main([])

    def run(self, code: int = 0, limit: int = resource.RLIM_INFINITY, log: str = "log") -> str:
        started = self.start(limit, log)
        started.join(300)
        said = (self.folder / log).read_text()
        assert started.exitcode == code, said
        return said

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, shards: int, running: BaseProcess) -> None:
        """Wait until that many shards are finished."""
        notes = self.data / "shards.partial" / "notes"
        while len(list(notes.glob("*.note"))) < shards:
            assert running.exitcode is None, self.log
            time.sleep(0.002)

    @property
    def files(self) -> dict[str, str]:
        return {
            name: sha for name, sha in digest(self.folder).items() if name.startswith(("data", "results"))
        }


def workers_of(leader: int) -> list[int]:
    """The other processes of the leader's session."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):  # it has just ended
            if os.getsid(process.pid) == leader != process.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A project whose raw images take some time to prepare."""
    folder = tmp_path_factory.mktemp("stage")
    tree(folder / "raw" / "own", 30, (900, 700))
    picture_file(folder / "raw" / "own" / "train" / "dog" / f"{'long' * 45}.jpg")
    settings = ["name=own", "shard_images=2", "shrink=8", "scenes.train=1", "scenes.val=1"]
    compose(folder, "dataset=folder", *(f"dataset.{setting}" for setting in settings))
    shutil.copy(ROOT / "dvc.yaml", folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(template, tmp_path_factory) -> dict[str, str]:
    stage = Stage(Path(shutil.copytree(template, tmp_path_factory.mktemp("undisturbed") / "stage")))
    assert "65 images" in stage.run()
    return stage.files


@pytest.fixture
def stage(template, tmp_path) -> Iterator[Stage]:
    stage = Stage(Path(shutil.copytree(template, tmp_path / "stage")))
    yield stage
    for running in stage.started:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def assert_recovers(stage: Stage, undisturbed: dict[str, str]) -> None:
    """The next run keeps the finished shards and ends with the files of an undisturbed run."""
    partial = stage.data / "shards.partial"
    noted = {f"{path.stem}.tar" for path in (partial / "notes").glob("*.note")}
    finished = {name: state for name, state in shard_states(partial).items() if name in noted}
    assert len(finished) >= 3
    stage.run()
    assert finished.items() <= shard_states(stage.data / "shards").items()
    changes = {name for name, _ in stage.files.items() ^ undisturbed.items()}
    assert changes == {"results/prepare.provenance.json"}  # it contains the date


@pytest.mark.parametrize(
    ("number", "group", "code"),
    [
        pytest.param(signal.SIGKILL, False, -signal.SIGKILL, marks=pytest.mark.slow),
        (signal.SIGKILL, True, -signal.SIGKILL),
        pytest.param(signal.SIGTERM, False, -signal.SIGTERM, marks=pytest.mark.slow),
        (signal.SIGINT, True, 130),
    ],
)
def test_a_stopped_run_is_resumed(stage, undisturbed, number, group, code) -> None:
    for _ in range(3):
        running = stage.start()
        stage.until(3, running)
        (os.killpg if group else os.kill)(running.pid, number)
        running.join(120)
        if running.exitcode != 0:  # otherwise it finished before the signal
            break
        shutil.rmtree(stage.data)
    assert running.exitcode == code
    until(lambda: not workers_of(running.pid))
    assert "Traceback" not in stage.log
    assert_recovers(stage, undisturbed)


def test_shards_of_changed_parameters_are_not_published(stage, undisturbed) -> None:
    params = stage.folder / "params.yaml"
    written = params.read_text()
    running = stage.start()
    stage.until(3, running)
    params.write_text(written.replace('"shrink": 8', '"shrink": 4'))
    running.join(300)
    assert running.exitcode == 1
    assert "params.yaml was changed while this stage ran (dataset)" in stage.log
    assert not (stage.data / "shards").exists()
    params.write_text(written)
    stage.run()
    changes = {name for name, _ in stage.files.items() ^ undisturbed.items()}
    assert changes == {"results/prepare.provenance.json"}


def test_ten_unreadable_images_are_named_and_the_others_counted_by_reason(stage, monkeypatch) -> None:
    """Pillow's reasons for truncated files differ in the number of bytes; HEIC needs a package."""
    folder = stage.folder / "raw/own/train/dog"
    whole = (folder / "0.jpg").read_bytes()
    for number in range(12):
        (folder / f"cut {number}.jpg").write_bytes(whole[: len(whole) // 2 + number])
    (folder / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with without_heic(monkeypatch):
        said = stage.run()
    truncated = "unreadable .jpg, OSError: image file is truncated (N bytes not processed)"
    heic = "unreadable .heic, ValueError: HEIC needs another package: run `pip install pillow-heif`"
    skipped = json.loads((stage.data / "shards/manifest.json").read_text())["splits"]["train"]["skipped"]
    assert skipped.keys() == {"dog/phone", *(f"dog/cut {number}" for number in range(12))}
    named = [line for line in said.splitlines() if line.startswith("prepare: left out dog/")]
    keys = [line.removeprefix("prepare: left out ").partition(":")[0] for line in named]
    assert keys == list(skipped)[:10]
    counts = re.findall(r"left out (\d+) more images?: unreadable", said)
    assert sum(map(int, counts)) == 3
    assert said.count("left out") == 10 + len(counts)
    assert "prepare: once pillow-heif is installed, `dvc repro -f prepare` reads the HEIC images\n" in said
    provenance = json.loads((stage.folder / "results/prepare.provenance.json").read_text())
    assert provenance["left_out"] == {truncated: 12, heic: 1}


def test_a_killed_worker_gives_an_error_instead_of_a_hang(stage, undisturbed) -> None:
    running = stage.start()
    stage.until(3, running)
    os.kill(workers_of(running.pid)[0], signal.SIGKILL)
    running.join(120)
    assert running.exitcode == 1
    assert (
        "Error: a worker was killed, perhaps because memory ran out; run again to continue from here"
        in stage.log
    )
    assert "Traceback" not in stage.log
    assert_recovers(stage, undisturbed)


def test_a_concurrent_run_is_refused_and_harmless(stage, undisturbed) -> None:
    first = stage.start()
    stage.until(1, first)
    os.killpg(first.pid, signal.SIGSTOP)
    message = "Error: another process is writing into data; wait for it, or stop it\n"
    assert stage.run(code=1, log="second") == message
    os.killpg(first.pid, signal.SIGCONT)
    first.join(120)
    assert first.exitcode == 0, stage.log
    assert {name for name, _ in stage.files.items() ^ undisturbed.items()} == {
        "results/prepare.provenance.json"
    }


@pytest.mark.parametrize(
    ("limit", "finished"), [(9_000, 0), pytest.param(10_240, 33, marks=pytest.mark.slow)]
)
def test_a_limit_on_file_sizes_gives_an_error(stage, undisturbed, limit, finished) -> None:
    """All shards exceed the first limit; only the keys exceed the second."""
    write_shards(class_folders(tree(stage.folder / "earlier")), stage.data / "shards", 10)
    kept = digest(stage.data / "shards")
    said = stage.run(code=1, limit=limit)
    assert "Error: File too large" in said
    assert "no half-written file is left" in said
    assert "finished work is kept in data/shards.partial: run again to continue from there" in said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert digest(stage.data / "shards") == kept
    assert not list(stage.data.rglob("*.tar.partial"))
    assert len(shard_states(stage.data / "shards.partial")) == finished
    if finished:
        assert_recovers(stage, undisturbed)


@pytest.mark.parametrize(
    ("gpus", "processors", "shrink", "size", "advised"),
    [(1, 8, None, 100_000, True), (2, 23, None, 100_000, True), (0, 8, None, 100_000, False)]
    + [(1, 12, None, 100_000, False), (1, 8, 256, 100_000, False), (1, 8, None, 30_000, False)],
)
def test_smaller_files_are_advised_where_cores_cannot_feed_the_gpus(
    gpus, processors, shrink, size, advised, monkeypatch
) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    monkeypatch.setattr(prepare, "cores", lambda: processors)
    dataset = parameters("dataset=imagenet", "backbone=resnet50", "views=mocov2").dataset
    shards = [Shard(name="train-000000.tar", images=10, bytes=10 * size, sha256="")]
    split = Split(images=10, shards=shards, reencoded=0, turned=0, skipped={})
    manifest = Manifest(kind="", storage={}, classes=[], classes_sha256="", splits={"train": split})
    dataset = dataset.model_copy(update={"shrink": shrink})
    said = prepare._remarks(Splits([], [], []), {}, manifest, dataset)
    assert ["shrink=256" in sentence for sentence in said] == [True] * advised


@pytest.mark.parametrize(("tile", "counted"), [(None, "3 images of more"), (64, "3 tiles of more")])
def test_images_without_contrast_are_counted(tile, counted) -> None:
    dataset = parameters("dataset=folder", "dataset.name=own").dataset.model_copy(update={"tile": tile})
    split = Split(images=9, shards=[], reencoded=0, turned=0, flat=3, skipped={})
    manifest = Manifest(kind="", storage={}, classes=[], classes_sha256="", splits={"train": split})
    (said,) = prepare._remarks(Splits([], [], []), {}, manifest, dataset)
    assert said.startswith(counted)
