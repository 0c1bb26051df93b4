"""Processes that are started together, watch each other and end together."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import ModuleType

import pytest
import torch.distributed as dist

from cl.console import command, launch
from tests.support.processes import start_fork

SLEEP = "import os, signal, sys, time; from pathlib import Path; rank = int(os.environ['RANK'])\n"
FAIL = f"""{SLEEP}
if rank == 1:
    print("the reason", file=sys.stderr)
    sys.exit(3)
time.sleep(60)
"""
KILLED = f"""{SLEEP}
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""
SAVE = f"""{SLEEP}
def save(number, frame):
    time.sleep(rank)
    Path(f"saved-{{rank}}").touch()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)
    sys.exit(128 + number)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, save)
Path(f"started-{{rank}}").touch()
time.sleep(60)
"""


def run(code: str, ranks: int) -> None:
    variables = [{"RANK": str(rank)} for rank in range(ranks)]
    sys.exit(launch._run([sys.executable, "-c", code], variables))


def exit_code(process: BaseProcess) -> int | None:
    process.join(timeout=50)
    return process.exitcode


@pytest.mark.parametrize(
    ("code", "expected", "reason"),
    [(FAIL, 3, "process 1 of 3: the reason\n"), (KILLED, 137, "process 1 of 3 was ended by SIGKILL, ")],
)
def test_the_first_failure_ends_all_and_is_told_once(code, expected, reason, capfd) -> None:
    assert exit_code(start_fork(run, code, 3)) == expected
    told = capfd.readouterr().err
    assert told.startswith(reason)
    assert told.count("\n") == 1, told


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_reaches_all_and_they_have_time_to_save(number, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    process = start_fork(run, SAVE, 3)
    while len(list(tmp_path.glob("started-*"))) < 3:
        time.sleep(0.01)
    os.kill(process.pid, number)
    assert exit_code(process) == 128 + number
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-0", "saved-1", "saved-2"}
    assert capfd.readouterr().err == ""


def watch(port: int, rank: int, seconds: float) -> None:
    """A rank of two that stops giving signs of life after `seconds`."""
    launch.BEAT, launch.LOST = 0.05, 1.0
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    over = threading.Event()
    threading.Timer(seconds, over.set).start()
    launch._watch(store, rank, 2, over)
    time.sleep(60)


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_process_that_hangs_ends_the_others(store, capfd) -> None:
    hanging, other = (start_fork(watch, store.port, rank, seconds) for rank, seconds in ((1, 1), (0, 60)))
    assert exit_code(other) == 1
    assert "process 1 has shown no sign of life for 1 s" in capfd.readouterr().err
    hanging.kill()


def test_processes_that_slept_with_their_machine_go_on(store, capfd) -> None:
    """As on a laptop that is closed for longer than a silent process is waited for."""
    ranks = [start_fork(watch, store.port, rank, 60.0) for rank in (0, 1)]
    time.sleep(0.5)
    for number, seconds in ((signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.3)):
        for process in ranks:
            os.kill(process.pid, number)
            time.sleep(seconds)
    assert all(process.is_alive() for process in ranks), capfd.readouterr().err
    for process in ranks:
        process.kill()


def start_and_leave(port: int) -> None:
    start_fork(watch, port, 0, 60.0)
    time.sleep(1)
    os._exit(0)


def test_a_process_whose_launcher_is_gone_ends(store, capfd) -> None:
    """It ends even though its neighbour is alive."""
    neighbour = start_fork(watch, store.port, 1, 60.0)
    reading, writing = os.pipe()
    exit_code(start_fork(start_and_leave, store.port))
    os.close(writing)
    os.read(reading, 1)  # until the last process that has inherited the other end is gone
    os.close(reading)
    assert capfd.readouterr().err.startswith("the process that started this one is gone")
    assert neighbour.is_alive()
    neighbour.kill()


NCCL = (
    "NCCL error in: utils.cpp:94, {}, NCCL version 2.28.9\nncclRemoteError: a call failed\nLast error:\n{}\n"
)


@pytest.fixture
def fail(store, monkeypatch) -> Callable[[Exception], None]:
    """Raises an error in a process that has joined others."""
    monkeypatch.setattr(launch, "_connect", lambda: (store, 0, 1))
    monkeypatch.setattr(launch, "GRACE", 0.0)

    def raise_among_others(error: Exception) -> None:
        with launch.joined():
            raise error

    return raise_among_others


def test_an_error_of_nccl_is_told_with_its_cause(fail) -> None:
    error = dist.DistBackendError(NCCL.format("remote process exited", "NET/IB: completion\nwith status=12"))
    told = r"lost contact .*94, remote process exited, NCCL version 2.28.9 NET/IB: completion .*status=12\)"
    with pytest.raises(ValueError, match=told):
        fail(error)


def test_full_memory_in_nccl_is_not_a_lost_process(fail) -> None:
    error = dist.DistBackendError(NCCL.format("unhandled cuda error", "Cuda failure 2 'out of memory'"))
    with pytest.raises(dist.DistBackendError) as raised:
        fail(error)
    assert command.is_out_of_memory(raised.value)


def _node(monkeypatch, address: str, **variables: str) -> None:
    """This process as one of two nodes, whose name stands for this address."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    several = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node-0"}
    several |= {"MASTER_PORT": "1", **variables}
    for name, value in several.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: address)


def test_a_node_that_others_cannot_reach_is_named(monkeypatch) -> None:
    """Debian's /etc/hosts gives a machine's own name the address 127.0.1.1."""
    _node(monkeypatch, "127.0.1.1")
    with pytest.raises(ValueError, match=f"{socket.gethostname()} .*127.0.1.1.*GLOO_SOCKET_IFNAME"):
        launch._check_address()


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
    launch._check_address()


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_numbers_of_processes_from_a_batch_system_are_not_enough(missing, monkeypatch) -> None:
    _node(monkeypatch, "10.0.0.7")
    monkeypatch.delenv(missing)
    with pytest.raises(ValueError, match="RANK=0 and WORLD_SIZE=4, but no MASTER_ADDR .*torchrun, or unset"):
        launch.on_all_devices(lambda: None)()


def test_the_script_cl_starts_its_processes_as_a_module(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # a script has no module name
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/cl", "embed", "birds"])
    assert launch._command() == ["-P", "-m", "cl", "embed", "birds"]
