"""The processes of a command: one per GPU, as many as CL_PROCESSES says, or those of CL_LAUNCH or torchrun.

`torch.distributed.elastic`, which torchrun uses too, starts them and ends all when one fails.
"""

import functools
import logging
import os
import shlex
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import torch.distributed as dist
from torch.distributed.elastic import multiprocessing as elastic

from cl.console import command, stop
from cl.runtime import machine
from cl.runtime.cores import asked_number

BEAT = 2.0  # seconds between signs of life
LOST = 20.0  # seconds without a sign of life after which a process counts as lost
GRACE = 3.0  # seconds before a process reports a failure, so that the launcher can end it first
START = timedelta(minutes=5)  # for all processes to join
PATIENCE = timedelta(minutes=30)  # for a slow process
LOST_CONTACT = ("Connection closed", "onnection reset", "onnection refused", "NCCL", "gloo")


def on_all_devices(
    function: Callable[..., Any], check: Callable[[], Any] = lambda: None
) -> Callable[..., Any]:
    """Run `function` in all processes, by default one per GPU, after `check`, which names mistakes once."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            with joined() if os.environ["WORLD_SIZE"] != "1" else nullcontext():
                return function(*args, **kwargs)
        check()
        if launcher := os.environ.get("CL_LAUNCH"):
            sys.exit(_run([*shlex.split(launcher), *_command()], [_launcher_variables(launcher)]))
        number = processes()
        if number == 1:
            return function(*args, **kwargs)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # binds a free port
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}  # as torchrun would set
        shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        shared |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number)}
        variables = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]
        sys.exit(_run([sys.executable, *_command()], variables))

    return wrapped


def _command() -> list[str]:
    """The arguments with which another Python runs this command."""
    module = sys.modules["__main__"].__spec__  # None for the script `cl`
    # -P: like the script, do not import from the current folder, which may be a clone.
    return [*(["-m", module.name] if module else ["-P", "-m", "cl"]), *sys.argv[1:]]


def _launcher_variables(launcher: str) -> dict[str, str]:
    if asked := os.environ.get("CL_PROCESSES"):
        raise ValueError(f"CL_PROCESSES={asked} with CL_LAUNCH={launcher}: choose one of the two")
    if "CL_LAUNCHED" in os.environ:
        raise ValueError(f"CL_LAUNCH={launcher} sets no RANK and WORLD_SIZE; choose for example torchrun")
    return {"CL_LAUNCHED": "1"}


def processes() -> int:
    """The number of processes on this machine: CL_PROCESSES, or one per visible GPU, at least one."""
    return asked_number("CL_PROCESSES") or max(1, machine.gpus())


def _run(words: list[str], variables: list[dict[str, str]]) -> int:
    """Run the command in parallel, once per entry of `variables`; returns the command's exit code.

    When a process fails, elastic sends SIGTERM to the others, and SIGKILL 30 s later. Stderr of process 0 is
    shown as it comes; stderr of another process is shown only if that process failed first.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it repeats all errors
    stops = [signal.SIGTERM, signal.SIGINT]  # not SIGHUP: elastic would handle it even under `nohup`
    if "CL_STOP" in os.environ:  # each process watches for the file itself
        signal.signal(stops.pop(0), signal.SIG_IGN)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(number.name for number in stops)
    ranks = range(len(variables))
    with tempfile.TemporaryDirectory() as folder:
        logs = elastic.DefaultLogsSpecs(folder, redirects=dict.fromkeys(ranks[1:], elastic.Std.ERR))
        arguments = dict.fromkeys(ranks, tuple(words[1:]))
        try:
            group: Any = elastic.start_processes("", words[0], arguments, dict(enumerate(variables)), logs)
        except elastic.SignalException as error:
            return 128 + error.sigval

        def pass_on(number: int, frame: Any) -> None:
            for handler in group.subprocess_handlers.values():
                handler.proc.send_signal(number)

        # Elastic's own handlers kill the processes after 30 s, even during a slow step or save.
        for number in stops:
            signal.signal(number, pass_on)
        failures = group.wait(period=0.05).failures  # by rank, in the order of failure
        if not failures:
            return 0
        rank, failure = next(iter(failures.items()))
        name, code = f"process {rank} of {len(ranks)}", failure.exitcode
        if code < 0 and len(ranks) > 1:
            click.echo(
                f"{name} was ended by {failure.signal_name()}, and the others with it; "
                "run the same command again to continue from the saved progress",
                err=True,
            )
        elif rank and code not in command.STOPPED:
            click.echo(f"{name}: {Path(group.stderrs[rank]).read_text(errors='replace').strip()}", err=True)
    return code if code >= 0 else 128 - code


@contextmanager
def joined() -> Iterator[None]:
    """Join the process group of the environment, and watch one process; ValueError if one is lost."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # undo what the launcher may have set
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(*_connect(), over), daemon=True)
    watch.start()
    try:
        yield
        dist.barrier()
    except stop.StoppedError:  # raised by all processes after the same step
        dist.barrier()  # all must have saved before one exits, since the launcher then ends the others
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's signal must not change the exit code
        raise
    except Exception as error:
        is_lost = not command.is_out_of_memory(error) and any(sign in str(error) for sign in LOST_CONTACT)
        if is_lost and stop.requests:  # the launcher has already sent SIGTERM
            sys.exit(128 + stop.requests[0])
        if is_lost or os.environ.get("LOCAL_RANK", "0") != "0":  # if all fail alike, one of them reports it
            time.sleep(GRACE)
        if not is_lost:
            raise
        raise ValueError(f"lost contact with a process ({_cause(error)}); saved progress is kept") from error
    finally:
        over.set()
        watch.join(BEAT)
    dist.destroy_process_group()


def _connect() -> tuple[Any, int, int]:
    """Join the process group; returns a store shared by all processes, the rank, and the number of ranks."""
    _check_address()
    try:
        store, rank, ranks = next(dist.rendezvous("env://", timeout=START))
        backend = "cpu:gloo,cuda:nccl" if machine.gpus() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    except RuntimeError as error:  # also if GLOO_SOCKET_IFNAME is not an interface of this node
        environ = os.environ
        raise ValueError(
            f"process {environ['RANK']} could not join all {environ['WORLD_SIZE']} processes at "
            f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}, after at most {START.seconds // 60} "
            f"minutes: {_cause(error)}"
        ) from error
    return dist.PrefixStore("watch", store.clone()), rank, ranks


def _check_address() -> None:
    """Raises ValueError without an address to meet at, or if other nodes cannot reach that of this node."""
    environ, name, address = os.environ, socket.gethostname(), ""
    numbers = [environ.get(key, "") for key in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    if not (all(number.isdecimal() for number in numbers) and "MASTER_ADDR" in environ):
        raise ValueError(
            f"found RANK={numbers[0]} and WORLD_SIZE={numbers[1]}, but no MASTER_ADDR and MASTER_PORT where "
            "the processes meet; start them with torchrun, or unset RANK and WORLD_SIZE for one process"
        )
    several = int(environ["WORLD_SIZE"]) > int(environ.get("LOCAL_WORLD_SIZE", "1"))
    if several and not environ.get("GLOO_SOCKET_IFNAME"):
        with suppress(OSError):  # without an address, gloo tries the interfaces
            address = socket.gethostbyname(name)
    if address.startswith("127.") and environ["MASTER_ADDR"] not in ("127.0.0.1", "localhost"):
        raise ValueError(
            f"this node's host name {name} resolves to {address}, which other nodes cannot reach; "
            "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network interface between the nodes "
            f"(here: {', '.join(interface for _, interface in socket.if_nameindex())}), or correct /etc/hosts"
        )


def _cause(error: Exception) -> str:
    """The first line of an error, and what NCCL adds as its last error."""
    first, _, last = str(error).strip().partition("Last error:")
    return " ".join([first.split("\n")[0], *last.split()])


def _watch(store: Any, rank: int, ranks: int, over: threading.Event) -> None:
    """Exit if the next rank, on any node, shows no sign of life, or if the launcher is gone.

    Elastic only notices processes that end on its own machine. Without this function, the others would wait
    for a hung process or a dead node until PATIENCE is over. It counts its own beats, not seconds: otherwise,
    after the machine has slept, a healthy neighbour would seem to have been silent all that time.
    """
    launcher, neighbour = os.getppid(), (rank + 1) % ranks
    beats, missed, failure = -1, 0, ""
    while not over.wait(BEAT):
        try:
            store.add(f"{rank}", 1)
            found = store.add(f"{neighbour}", 0)
            missed = missed + 1 if found == beats else 0
            beats = found
        except RuntimeError:
            failure = "lost contact with the other processes"
        if missed * BEAT > LOST:
            failure = f"process {neighbour} has shown no sign of life for {LOST:.0f} s"
        if os.getppid() != launcher:
            failure = "the process that started this one is gone"
        if failure and not over.is_set():
            click.echo(f"{failure}; saved progress is kept", err=True)
            os._exit(1)
