"""Processes that tests start, stop and kill."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess


def start_fork(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """Start a function in a fork, which need not import everything again."""
    started = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    started.start()
    return started


def run_ranks(number: int, function: Callable[..., None], *arguments: object) -> None:
    """Run a function in as many forks, each with its rank as the last argument, until all have ended."""
    processes = [start_fork(function, *arguments, rank) for rank in range(number)]
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * number
