"""Processes that meet and watch each other."""

import multiprocessing
import os
import socket
import time

import pytest
import torch.distributed as dist

from pipeline.support import launch

FORKING = multiprocessing.get_context("fork")


def watch(port: int, rank: int, seconds: float) -> None:
    """A rank of two that stops giving signs of life after `seconds`."""
    launch.BEAT, launch.LOST = 0.05, 1.0
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    monitoring = launch._Watch(store, rank, 2)
    monitoring.start()
    time.sleep(seconds)
    monitoring.over.set()
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


def _node(monkeypatch, address: str, **variables: str) -> None:
    """This process as one of two nodes, whose name stands for this address."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    several = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node-0", **variables}
    for name, value in several.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: address)


def test_a_node_that_others_cannot_reach_is_named(monkeypatch) -> None:
    """Debian's /etc/hosts gives a machine's own name the address 127.0.1.1."""
    _node(monkeypatch, "127.0.1.1")
    with pytest.raises(ValueError, match=f"{socket.gethostname()}, stands for 127.0.1.1, where other nodes"):
        launch._check_interface()


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        ("10.0.0.7", {}),
        ("127.0.1.1", {"GLOO_SOCKET_IFNAME": "lo"}),
        ("127.0.1.1", {"WORLD_SIZE": "2"}),
        ("127.0.1.1", {"MASTER_ADDR": "127.0.0.1"}),
    ],
    ids=["reachable", "chosen", "one node", "all on this machine"],
)
def test_other_nodes_are_accepted(monkeypatch, address: str, variables: dict[str, str]) -> None:
    _node(monkeypatch, address, **variables)
    launch._check_interface()


def test_an_interface_that_does_not_exist_is_named(monkeypatch) -> None:
    _node(monkeypatch, "10.0.0.7", GLOO_SOCKET_IFNAME="lo,eth99")
    with pytest.raises(ValueError, match="has the network interfaces .*lo.*; name one of these"):
        launch._check_interface()
