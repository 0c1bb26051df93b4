"""Restarts: finished shards are kept, changed inputs start over, and a kill at any moment is harmless."""

import os
import shutil
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from cl.images.image import Splits
from cl.shards import writing
from cl.shards.survey import Team
from cl.sources import Storage
from cl.sources._shared.class_folders import class_folders
from pipeline.support import command
from tests.support.pictures import digest, picture_file, shard_states, tree, without_heic
from tests.support.processes import start_fork
from tests.support.tiny import STORAGE, write_shards


def stop_after(splits, folder: Path, shards: int, **changes: object) -> None:  # type: ignore[no-untyped-def]
    """Write shards, and press Ctrl-C after that many."""
    seen = []

    def report(done: int, kept: bool = False) -> None:
        seen.append(done)
        if len(seen) == shards:
            raise KeyboardInterrupt

    def count(total: int, unit: str) -> AbstractContextManager:
        return nullcontext(report if unit == "images" else len)

    storage = Storage(**{"shard_images": 2, **STORAGE, **changes})
    with pytest.raises(KeyboardInterrupt):
        writing.write(splits, "photos", storage, folder, Team(1, count))


def test_finished_shards_are_kept(tmp_path) -> None:
    splits = class_folders(tree(tmp_path / "own", 8))
    write_shards(splits, tmp_path / "whole", 2)
    stop_after(splits, tmp_path / "shards", 3)
    finished, reported = shard_states(tmp_path / "shards"), {True: 0, False: 0}
    assert len(finished) == 3

    def report(done: int, kept: bool = False) -> None:
        reported[kept] += done

    storage = Storage(**{"shard_images": 2, **STORAGE})
    team = Team(2, lambda total, unit: nullcontext(report))
    writing.write(splits, "photos", storage, tmp_path / "shards", team)
    assert reported == {True: 6, False: len(splits.train) + len(splits.val) - 6}
    assert finished.items() <= shard_states(tmp_path / "shards").items()
    assert digest(tmp_path / "shards") == digest(tmp_path / "whole")


@pytest.mark.parametrize("change", ["image", "quality", "shard_images", "gone", "label", "heic"])
def test_changed_images_settings_or_formats_start_over(tmp_path, monkeypatch, change) -> None:
    root = tree(tmp_path / "own", 8)
    with without_heic(monkeypatch) if change == "heic" else nullcontext():
        stop_after(class_folders(root), tmp_path / "shards", 6, encode="jpeg")
    finished, settings = shard_states(tmp_path / "shards"), {"encode": "jpeg", "shard_images": 2}
    match change:
        case "image":
            picture_file(root / "train" / "cat" / "3.jpg", 77)
        case "gone":
            (root / "train" / "cat" / "3.jpg").unlink()
        case "quality" | "shard_images":
            settings[change] = 3
    splits = class_folders(root)
    if change == "label":
        splits = Splits(
            splits.classes, [replace(image, label=1 - image.label) for image in splits.train], splits.val
        )
    size = settings.pop("shard_images")
    for folder in ("shards", "fresh"):
        write_shards(splits, tmp_path / folder, size, **settings)
    assert not finished.items() & shard_states(tmp_path / "shards").items()
    assert digest(tmp_path / "shards") == digest(tmp_path / "fresh")


def test_a_lost_shard_is_written_again(tmp_path) -> None:
    splits = class_folders(tree(tmp_path / "own", 8))
    write_shards(splits, tmp_path / "whole", 2)
    stop_after(splits, tmp_path / "shards", 3)
    (tmp_path / "shards" / "train-000001.tar").unlink()
    write_shards(splits, tmp_path / "shards", 2)
    assert digest(tmp_path / "shards") == digest(tmp_path / "whole")


CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


def publish(folder: Path, die: int = -1) -> None:
    """Prepare and publish as the stage does, until killed at disk change number `die`."""
    os.chdir(folder)
    seen = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event in CHANGES or (event == "open" and str(arguments[1]).startswith("w")):
            seen += 1
            if seen == die:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    with command.published(Path("data/shards"), resumable=True) as partial:
        write_shards(class_folders(Path("own")), partial, 2)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_the_next_run_recovers_from_a_kill_at_any_disk_change(every, tmp_path) -> None:
    """`data/shards` is always complete, of the earlier or the new run, or briefly missing."""
    for name in ("before", "now"):
        tree(tmp_path / name / "own", 2)
    picture_file(tmp_path / "now" / "own" / "train" / "cat" / "0.jpg", 5)
    finished = {}
    for name in ("before", "now"):
        once = start_fork(publish, tmp_path / name)
        once.join()
        finished[name] = digest(tmp_path / name / "data")
    die, exitcode = 0, -signal.SIGKILL
    while exitcode:
        die += every
        shutil.rmtree(tmp_path / "now" / "data")
        shutil.copytree(tmp_path / "before" / "data", tmp_path / "now" / "data")
        killed = start_fork(publish, tmp_path / "now", die)
        killed.join()
        exitcode = killed.exitcode
        shards = digest(tmp_path / "now" / "data" / "shards")
        published = {f"shards/{name}": sha for name, sha in shards.items()}
        assert published in (finished["before"], finished["now"], {})
        again = start_fork(publish, tmp_path / "now")
        again.join()
        assert again.exitcode == 0
        assert digest(tmp_path / "now" / "data") == finished["now"], die
    assert die > 30
