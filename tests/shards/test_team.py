"""Several processes prepare one data set: the same bytes, shared work, and nobody waits for a slow one."""

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

from cl.images.image import Splits
from cl.shards import running, writing
from cl.shards.packing import pack
from cl.shards.team import Team
from cl.sources import Storage
from cl.sources._shared.class_folders import class_folders
from tests.support.pictures import digest, odd_tree, picture_file, tree
from tests.support.processes import run_ranks
from tests.support.tiny import STORAGE, write_shards

RANKS = 3
FORK = multiprocessing.get_context("fork")


class Exchange:
    """Gathers values over forked processes."""

    def __init__(self) -> None:
        self.queues = [[FORK.Queue() for _ in range(RANKS)] for _ in range(RANKS)]

    def of(self, rank: int) -> Callable[[Any], list[Any]]:
        def gather(mine: Any) -> list[Any]:
            for queue in self.queues[rank]:
                queue.put(mine)
            return [queues[rank].get(timeout=60) for queues in self.queues]

        return gather


def write_as(
    exchange: Exchange, listed: Callable[[], Splits], folder: Path, settings: dict, rank: int
) -> None:
    reported, totals = Counter[str](), Counter[str]()

    @contextmanager
    def count(total: int, unit: str) -> Iterator[Callable[..., None]]:
        totals[unit] += total
        yield lambda done, kept=False: reported.update({unit: done})

    team = Team(1 + rank % 2, count, rank, RANKS, exchange.of(rank))
    storage = Storage(**{"shard_images": 3, **STORAGE, **settings})
    manifest = writing.write(listed(), "photos", storage, folder, team)
    assert (manifest is None) == (rank > 0)
    assert rank or reported["images"] == totals["images"] > 0  # rank 0 counts those of all


@pytest.mark.parametrize(
    "settings",
    [{"deduplicate": True}, *(pytest.param(each, marks=pytest.mark.slow) for each in ({}, {"tile": 24}))],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_any_number_of_processes_writes_the_same_bytes(tmp_path, settings) -> None:
    root = odd_tree(tmp_path / "own")
    for number, label in enumerate(("cat", "dog")):
        picture_file(root / f"val/{label}/only here.jpg", 98 + number)
    deep = np.arange(600, dtype=np.uint16).reshape(20, 30) * 100
    Picture.fromarray(deep).save(root / "train/cat/deep.png")
    write_shards(class_folders(root), tmp_path / "alone", 3, **settings)
    run_ranks(RANKS, write_as, Exchange(), lambda: class_folders(root), tmp_path / "together", settings)
    assert digest(tmp_path / "together") == digest(tmp_path / "alone")


def test_nobody_waits_for_a_slow_process(tmp_path, monkeypatch) -> None:
    """Rank 1 takes seconds for its first shard; the others write the rest of its share meanwhile."""
    splits = class_folders(tree(tmp_path / "own", 15))
    written: Queue[tuple[int, str]] = FORK.Queue()

    def write(exchange: Exchange, rank: int) -> None:
        def slow(listed: list, storage: Storage, target: Path, levels: Any) -> Any:
            time.sleep(4 * (rank == 1))
            written.put((rank, target.name))
            return pack(listed, storage, target, levels)

        monkeypatch.setattr(running, "pack", slow)
        write_as(exchange, lambda: splits, tmp_path / "together", {}, rank)

    run_ranks(RANKS, write, Exchange())
    found = [written.get(timeout=10) for _ in range(12)]
    assert len({name for _, name in found}) == len(found) == 12  # each shard once
    assert sum(rank == 1 for rank, _ in found) <= 2
    write_shards(splits, tmp_path / "alone", 3)
    assert digest(tmp_path / "together") == digest(tmp_path / "alone")


def test_different_lists_are_refused(tmp_path) -> None:
    root = tree(tmp_path / "own")

    def write(exchange: Exchange, rank: int) -> None:
        if rank == 2:
            picture_file(root / "train/cat/another.jpg")
        exchange.of(rank)(None)
        listed = class_folders(root) if rank == 2 else splits
        with pytest.raises(ValueError, match="different raw data: let all read one folder"):
            write_as(exchange, lambda: listed, tmp_path / "together", {}, rank)

    splits = class_folders(root)
    run_ranks(RANKS, write, Exchange())


def test_what_an_interrupted_run_had_claimed_is_written_by_the_next(tmp_path, monkeypatch) -> None:
    splits, folder = class_folders(tree(tmp_path / "own", 15)), tmp_path / "shards"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running, "pack", stop)
        with pytest.raises(KeyboardInterrupt):
            write_shards(splits, folder, 3)
    assert [path.name for path in (folder / "notes").glob("*.claim")] == ["train-000000.claim"]
    for target in ("shards", "fresh"):
        write_shards(splits, tmp_path / target, 3)
    assert digest(folder) == digest(tmp_path / "fresh")
