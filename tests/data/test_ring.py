"""Batches filled by worker processes in shared memory."""

import gc
import mmap
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection, Pipe
from multiprocessing.util import register_after_fork

import numpy as np
import pytest
import torch

from cl.data import ring
from cl.data.ring import AHEAD, SLICE, Array
from tests.support.processes import start_fork, until

ARRAYS = [Array((2, 3), np.uint8), Array((), np.int64)]


def fill(batch: int, rows: slice, arrays: list[np.ndarray]) -> None:
    numbers = np.arange(rows.start, rows.stop)
    arrays[0][:] = (7 * batch + numbers)[:, None, None] % 251
    arrays[1][:] = 1000 * batch + numbers


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [1, SLICE - 1, SLICE, 2 * SLICE + 5])
def test_batches_come_whole_and_in_order(workers, size) -> None:
    count = 0
    for batch, (small, large) in enumerate(
        ring.filled(fill, range(3, 23), lambda _: size, ARRAYS, workers), 3
    ):
        assert np.array_equal(large, 1000 * batch + np.arange(size))
        assert (small == (7 * batch + np.arange(size))[:, None, None] % 251).all()
        count += 1
    assert count == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_the_last_batch_may_be_shorter(workers) -> None:
    def rows(start: int) -> int:
        return min(100, 330 - start)

    batches = [large.copy() for _, large in ring.filled(fill, range(0, 330, 100), rows, ARRAYS, workers)]
    assert [len(batch) for batch in batches] == [100, 100, 100, 30]
    assert list(ring.filled(fill, range(0), rows, ARRAYS, workers)) == []


@pytest.mark.parametrize("size", [8, 2 * SLICE])
def test_a_batch_is_valid_until_two_batches_later(size) -> None:
    batches = ring.filled(fill, range(60), lambda _: size, ARRAYS, 2)
    before = next(batches)[1]
    for number, (_, batch) in enumerate(batches, 1):
        time.sleep(0.005)  # time for the workers to run ahead
        assert np.array_equal(before, 1000 * (number - 1) + np.arange(size))
        before = batch


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self, freed: mmap.mmap) -> None:
        self.itself, self.freed = self, freed

    def __del__(self) -> None:
        self.freed[0] = 1


def test_workers_leave_the_garbage_of_the_main_process_alone() -> None:
    """From the fork on: it may hold tensors of a GPU, which only the process that started CUDA can free."""
    freed = mmap.mmap(-1, 1)  # shared with the workers
    gc.disable()
    try:
        Cycle(freed)
        register_after_fork(freed, lambda _: gc.collect())
        list(ring.filled(fill, range(3), lambda _: 4, ARRAYS, 1))
        assert freed[0] == 0
        gc.collect()
        assert freed[0] == 1
    finally:
        gc.enable()


def test_memory_is_reused() -> None:
    size, workers = SLICE, 2
    places = {batch[1].ctypes.data for batch in ring.filled(fill, range(60), lambda _: size, ARRAYS, workers)}
    assert len(places) == 2 + AHEAD * workers


def broken(batch: int, rows: slice, arrays: list[np.ndarray]) -> None:
    if batch == 2:
        raise ValueError("shard 7 was changed")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_raised_unchanged(workers) -> None:
    batches = ring.filled(broken, range(5), lambda _: 4, ARRAYS, workers)
    next(batches), next(batches)
    with pytest.raises(ValueError, match="^shard 7 was changed$"):
        next(batches)


def killed(batch: int, rows: slice, arrays: list[np.ndarray]) -> None:
    if batch == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_ends_the_loop() -> None:
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for _ in ring.filled(killed, range(5), lambda _: 4, ARRAYS, 2):
            pass


def _kill_remaining_workers() -> None:
    """Those of the loop whose worker was killed, perhaps while it held a lock."""
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()


def test_workers_continue_after_sigterm_until_the_step_is_finished() -> None:
    """Slurm signals workers too."""
    _kill_remaining_workers()
    batches = ring.filled(fill, range(60), lambda _: SLICE, ARRAYS, 2)
    for _ in range(20):  # both have begun
        next(batches)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGTERM)
    assert len(list(batches)) == 40


def test_workers_end_with_their_loop() -> None:
    _kill_remaining_workers()
    batches = ring.filled(fill, range(10_000), lambda _: 4, ARRAYS, 2)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    until(lambda: not multiprocessing.active_children())


def _begun_and_killed(sender: Connection) -> None:
    batches = ring.filled(fill, range(10_000), lambda _: 4, ARRAYS, 2)
    next(batches)
    sender.send(len(multiprocessing.active_children()))
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_end_with_a_killed_process(monkeypatch) -> None:
    """At once: torch itself looks after five seconds, here much later."""
    monkeypatch.setattr(torch.utils.data._utils.worker, "MP_STATUS_CHECK_INTERVAL", 10_000)
    receiver, sender = Pipe()
    start_fork(_begun_and_killed, sender)
    sender.close()
    assert receiver.recv() == 2
    assert receiver.poll(60)
    with pytest.raises(EOFError):  # no process is left that could write
        receiver.recv()
