"""Processes that watch each other."""

import multiprocessing
import os
import time

import torch.distributed as dist

from pipeline import launch

FORKING = multiprocessing.get_context("fork")


def watch(port: int, rank: int, seconds: float) -> None:
    """A rank of two that stops giving signs of life after `seconds`."""
    launch.BEAT, launch.LOST = 0.05, 1.0
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    watching = launch._Watch(store, rank, 2)
    watching.start()
    time.sleep(seconds)
    watching.over.set()
    time.sleep(60)


def test_a_process_that_hangs_ends_the_others() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    hanging = FORKING.Process(target=watch, args=(store.port, 1, 1.0), daemon=True)
    other = FORKING.Process(target=watch, args=(store.port, 0, 60.0), daemon=True)
    for process in (hanging, other):
        process.start()
    other.join(timeout=60)
    assert other.exitcode == 1
    assert store.get("failed") == b"process 1 has shown no sign of life for 1 s"
    hanging.kill()


def test_a_process_whose_launcher_is_gone_ends(monkeypatch) -> None:
    """It ends even though its neighbour is alive."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    neighbour = FORKING.Process(target=watch, args=(store.port, 1, 60.0), daemon=True)
    neighbour.start()
    monkeypatch.setenv("CL_PARENT", str(os.getppid()))  # another process than the one that starts it
    orphan = FORKING.Process(target=watch, args=(store.port, 0, 60.0), daemon=True)
    orphan.start()
    orphan.join(timeout=50)
    assert orphan.exitcode == 1
    assert not store.check(["failed"]), "the neighbour is not the reason"
    neighbour.kill()
