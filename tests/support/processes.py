"""Processes that tests start, stop and kill."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess


def start_fork(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """Start a function in a fork, which need not import everything again."""
    started = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    started.start()
    return started
