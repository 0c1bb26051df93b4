"""A run that is killed again and again, by one process or two, ends with the same weights as one that is left alone."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cl.config import Params
from cl.console.progress import Progress
from cl.runtime import machine
from cl.runtime.tensor_files import save_tensors
from cl.training.checkpoints import Checkpoints
from tests.training.test_loop import newest, run

MANY = pytest.mark.slow  # twenty kills take a minute
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["cl.training.loop", "cl.config", "cl.shards.writing", "torch._dynamo", "torch.distributed", "pytest"]
)
EPOCHS = {"epochs": 60}  # 180 steps


class Counting(Checkpoints):
    saves = 0

    def save(self, *arguments) -> None:  # type: ignore[no-untyped-def]
        super().save(*arguments)
        self.saves += 1


def train(
    rank: int, ranks: int, shards: Path, params: Params, folder: Path, scratch: Path, seconds: float
) -> None:
    """One of the processes of a run that saves itself every so many seconds."""
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    here = machine.Machine(torch.device("cpu"), 0, "fp32")
    quiet = Progress("test", console=None)
    quiet.console.quiet = True
    checkpoints = Counting(scratch, seconds)
    task, _ = run(shards, params, here, quiet, checkpoints, EPOCHS)
    if rank == 0:
        (folder / "saves").write_text(str(checkpoints.saves))
        save_tensors(task.state_dict(), folder / "finished.safetensors")


def start(ranks: int, shards: Path, params: Params, folder: Path, scratch: Path, seconds: float = 0) -> list:
    folder.mkdir()
    arguments = (shards, params, folder, scratch, seconds)
    processes = [
        PROCESSES.Process(target=train, args=(rank, ranks, *arguments), daemon=True) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return processes


@pytest.mark.parametrize(
    ("ranks", "kills"), [(1, 3), (2, 3), pytest.param(1, 20, marks=MANY), pytest.param(2, 20, marks=MANY)]
)
def test_kills_change_nothing(ranks, kills, shard_folder, params, tmp_path) -> None:
    """At random moments, whatever the process is doing, a save included."""
    for process in start(ranks, shard_folder, params, tmp_path / "undisturbed", tmp_path / "scratch"):
        process.join(timeout=120)
        assert process.exitcode == 0
    expected = (tmp_path / "undisturbed" / "finished.safetensors").read_bytes()
    scratch, chance, killed, resumed = tmp_path / "other", random.Random(ranks), 0, set()
    for attempt in range(200):
        folder = tmp_path / f"{attempt}"
        processes = start(ranks, shard_folder, params, folder, scratch)
        if killed < kills:
            before = newest(scratch)
            while newest(scratch) == before and any(process.exitcode is None for process in processes):
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.05))
            victim = chance.choice(processes)
            if victim.exitcode is None:
                os.kill(victim.pid, signal.SIGKILL)
                killed += 1
        for process in processes:
            process.join(timeout=60)
        assert all(process.exitcode is not None for process in processes), "a process waits for a dead one"
        resumed.add(newest(scratch))
        if (folder / "finished.safetensors").exists():
            break
    assert killed == kills
    assert len(resumed) == kills + 1, "each time the run went on from where it was"
    assert (folder / "finished.safetensors").read_bytes() == expected


def test_two_processes_do_not_save_at_every_step(shard_folder, params, tmp_path) -> None:
    """The first process decides when it is time; the others never save, and so are always late."""
    for process in start(2, shard_folder, params, tmp_path / "run", tmp_path / "scratch", 0.3):
        process.join(timeout=120)
        assert process.exitcode == 0
    assert 1 < int((tmp_path / "run" / "saves").read_text()) < 60
