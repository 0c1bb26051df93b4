"""Processes that tests start, stop and kill."""

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess


def keep_to_one_core(number: int = 0) -> None:
    """Let this process, and what it starts, use one core, the `number`-th, and one thread.

    Competing threads are slow. NumPy starts one for each core that it sees when it is imported. In a fork of
    a process whose tensors several threads have worked on, another attempt to use several would wait forever.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    import torch

    torch.set_num_threads(1)


def start_fork(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """Start a function in a fork, which need not import everything again."""
    started = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    started.start()
    return started


def run_ranks(number: int, function: Callable[..., None], *arguments: object) -> None:
    """Run a function in as many forks, each with its rank as the last argument, until all have ended."""
    join([start_fork(function, *arguments, rank) for rank in range(number)])


def join(processes: list[BaseProcess]) -> None:
    """Wait until all have ended, without an error."""
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def until(condition: Callable[[], object], pause: float = 0.01) -> None:
    """Wait for the condition; ten minutes show that it will not come."""
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(pause)
