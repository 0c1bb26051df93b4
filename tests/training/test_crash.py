"""A run of one process or several that is killed repeatedly ends with the weights of an undisturbed run."""

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
from tests.support.training import newest_step, train_tiny

MANY = pytest.mark.slow  # twenty kills take a minute
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.training", "torch._dynamo", "torch.distributed", "pytest"])
NEVER = 1e9  # seconds


class Counting(Checkpoints):
    saves = 0

    def save(self, *arguments) -> None:  # type: ignore[no-untyped-def]
        super().save(*arguments)
        self.finish()  # so that the next step is saved too
        self.saves += 1


def train(
    rank: int,
    ranks: int,
    folder: Path,
    shards: Path,
    params: Params,
    scratch: Path,
    seconds: tuple[float, ...],
    epochs: int,
) -> None:
    """One of the processes of a run; for each of them a save is due after its `seconds`."""
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    here = machine.Machine(torch.device("cpu"), 0, "fp32")
    quiet = Progress("test", console=None)
    quiet.console.quiet = True
    checkpoints = Counting(scratch, seconds[rank])
    task, _ = train_tiny(
        shards, params, here, quiet, checkpoints=checkpoints, settings={"epochs": epochs, "batch_size": 36}
    )
    if rank == 0:
        (folder / "saves").write_text(str(checkpoints.saves))
        save_tensors(task.state_dict(), folder / "finished.safetensors")


def start(ranks: int, folder: Path, *arguments: object) -> list:
    folder.mkdir()
    processes = [
        PROCESSES.Process(target=train, args=(rank, ranks, folder, *arguments), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return processes


@pytest.fixture(scope="module")
def small(params) -> Params:
    """The parameters that the run reads; all of them would take every process seconds to unpickle."""
    return Params.model_construct(dataset=params.dataset, baselines=params.baselines)


@pytest.mark.parametrize(
    ("ranks", "kills", "shards"),
    [
        (4, 1, "shard_folder"),
        (2, 1, "band_folder"),
        *(pytest.param(ranks, 20, "shard_folder", marks=MANY) for ranks in (1, 2, 3, 4)),
    ],
)
def test_kills_do_not_change_the_result(ranks, kills, shards, small, tmp_path, request) -> None:
    """At random moments, whatever the process is doing, a save included."""
    epochs, shard_folder = 15 + 2 * kills, request.getfixturevalue(shards)  # of 3 steps each
    for process in start(
        ranks, tmp_path / "undisturbed", shard_folder, small, tmp_path / "scratch", (NEVER,) * ranks, epochs
    ):
        process.join(timeout=120)
        assert process.exitcode == 0
    expected = (tmp_path / "undisturbed" / "finished.safetensors").read_bytes()
    scratch, chance, killed, resumed = tmp_path / "other", random.Random(ranks), 0, set()
    for attempt in range(200):
        folder = tmp_path / f"{attempt}"
        processes = start(ranks, folder, shard_folder, small, scratch, (0.0,) * ranks, epochs)
        if killed < kills:
            before = newest_step(scratch)
            while newest_step(scratch) == before and any(process.exitcode is None for process in processes):
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.05))
            victim = chance.choice(processes)
            if victim.exitcode is None:
                os.kill(victim.pid, signal.SIGKILL)
                killed += 1
        for process in processes:
            process.join(timeout=60)
        assert all(process.exitcode is not None for process in processes), "a process waits for a dead one"
        resumed.add(newest_step(scratch))
        if (folder / "finished.safetensors").exists():
            break
    assert killed == kills
    assert len(resumed) == kills + 1, "each time the run continued from its checkpoint"
    assert (folder / "finished.safetensors").read_bytes() == expected


@pytest.mark.parametrize(("seconds", "saves"), [((NEVER, 0.0), 1), ((0.0, NEVER), 15)])
def test_the_first_of_two_processes_decides_when_to_save(
    seconds, saves, shard_folder, small, tmp_path
) -> None:
    """For the others, which never save, a save is always due. The last of the 15 steps is saved anyway."""
    for process in start(2, tmp_path / "run", shard_folder, small, tmp_path / "scratch", seconds, 5):
        process.join(timeout=120)
        assert process.exitcode == 0
    assert int((tmp_path / "run" / "saves").read_text()) == saves
