"""The processes of a stage: one per GPU, as many as CL_PROCESSES says, or those of CL_LAUNCH or torchrun.

When a process dies, the others end within a minute, on all nodes, and say why.
"""

import functools
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import IO, Any

import click

from cl.console.stop import StoppedError
from cl.console.wording import counted
from pipeline.support import command

BEAT = 2.0  # seconds between signs of life
LOST = 30.0  # seconds without a sign of life after which a process counts as lost
GRACE = 10.0  # seconds the other processes have to end by themselves
START = timedelta(minutes=5)  # for all processes to join
PATIENCE = timedelta(minutes=30)  # for a process that is alive but slow
LOST_CONTACT = ("Connection closed", "onnection reset", "onnection refused", "NCCL", "gloo")


def on_all_devices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run the stage in all its processes, one for each GPU unless told otherwise; each calls `function`."""
    return _in_all_processes(function, processes)


def in_one_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run the stage in this process, or in those of CL_PROCESSES, CL_LAUNCH or torchrun."""
    return _in_all_processes(function, lambda: processes() if os.environ.get("CL_PROCESSES") else 1)


def _in_all_processes(function: Callable[..., Any], count: Callable[[], int]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            with joined() if int(os.environ["WORLD_SIZE"]) > 1 else nullcontext():
                return function(*args, **kwargs)
        command.params()  # report mistakes once, not once per process
        if launcher := os.environ.get("CL_LAUNCH"):
            sys.exit(run([[*shlex.split(launcher), *_stage()]], [_launcher_variables(launcher)]))
        number = count()
        if number == 1:
            return function(*args, **kwargs)
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # holds a free port
        variables = [_process_variables(rank, number, store.port) for rank in range(number)]
        sys.exit(run([[sys.executable, *_stage()]] * number, variables))

    return wrapped


def _stage() -> list[str]:
    """What runs this stage in another Python."""
    return ["-m", sys.modules["__main__"].__spec__.name, *sys.argv[1:]]  # type: ignore[union-attr]


def _launcher_variables(launcher: str) -> dict[str, str]:
    if asked := os.environ.get("CL_PROCESSES"):
        raise ValueError(f"CL_PROCESSES={asked} with CL_LAUNCH={launcher}: choose one of the two")
    if "CL_LAUNCHED" in os.environ:
        raise ValueError(
            f"CL_LAUNCH={launcher} started this process without RANK and WORLD_SIZE; "
            "choose a launcher that sets them, such as torchrun"
        )
    return {"CL_LAUNCHED": "1"}


def _process_variables(rank: int, processes: int, port: int) -> dict[str, str]:
    """What torchrun would set, and the id of the parent; the process ends when its parent does."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "CL_PARENT": str(os.getpid()),
    }


def processes() -> int:
    """How many processes this machine runs: CL_PROCESSES, or one for each visible GPU, at least one."""
    import torch

    asked, gpus = os.environ.get("CL_PROCESSES"), torch.cuda.device_count()
    if not asked:
        return max(1, gpus)
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"CL_PROCESSES={asked}: give a number of processes, such as 2")
    if 0 < gpus < int(asked):
        raise ValueError(
            f"CL_PROCESSES={asked}, but only {counted(gpus, 'GPUs')} visible: choose {gpus} or fewer"
        )
    return int(asked)


def run(commands: list[list[str]], variables: list[dict[str, str]]) -> int:
    """Run the commands side by side, each with its environment variables, and wait for all of them.

    When one fails, the others end soon after, and the result is the exit code of the first that failed.
    The first process's stderr is shown as it comes, that of another one only if it was the first to fail.
    """
    received = _record_signals()
    with ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        children = [
            subprocess.Popen(
                command, env={**os.environ, **extra}, stderr=error if number else None, start_new_session=True
            )
            for number, (command, extra, error) in enumerate(zip(commands, variables, errors, strict=True))
        ]
        failed = _wait(children, received)
        code = children[failed].returncode
        _report_failure(failed, len(children), code, errors[failed])
    return code if code >= 0 else 128 - code


def _record_signals() -> list[int]:
    """A list of signals to pass on, so that each process finishes its step and saves.

    With CL_STOP, SIGTERM is ignored: each process watches for the file itself.
    """
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: received.append(number))
    if "CL_STOP" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return received


def _wait(children: Sequence[subprocess.Popen], received: list[int]) -> int:
    """Wait for all children, killing them GRACE seconds after one failed; returns its number, or 0."""
    failed, since = None, 0.0
    while any(child.poll() is None for child in children):
        while received:
            number = received.pop(0)
            for child in children:
                child.send_signal(number)
        if failed is None:
            failed, since = _failed(children), time.monotonic()
        elif time.monotonic() - since > GRACE and children[failed].returncode not in command.STOPPED:
            for child in children:
                child.kill()
        time.sleep(0.05)
    return (_failed(children) or 0) if failed is None else failed


def _failed(children: Sequence[subprocess.Popen]) -> int | None:
    return next((number for number, child in enumerate(children) if child.poll()), None)


def _report_failure(number: int, processes: int, code: int, error: IO[bytes]) -> None:
    name = f"process {number} of {processes}"
    if code < 0 and processes > 1:
        click.echo(
            f"{name} was ended by {signal.Signals(-code).name}, and the others with it; "
            "run the same command again to continue from the saved progress",
            err=True,
        )
    elif code and number and code not in command.STOPPED:
        error.seek(0)
        click.echo(f"{name}: {error.read().decode(errors='replace').strip()}", err=True)


@contextmanager
def joined() -> Iterator[None]:
    """Join the processes that the environment names, and watch over a neighbour.

    Raises:
        ValueError: a process did not join, or contact with one was lost.
    """
    import torch.distributed as dist

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # undo what the launcher may have set
    watch = _Watch(*_connect())
    watch.start()
    try:
        yield
        dist.barrier()
    except StoppedError:  # raised by all after the same step
        dist.barrier()  # a launcher may end the others once one exits, so all must have saved
        raise
    except Exception as error:
        watch.report(f"process {watch.rank} failed: {error}")
        if not any(sign in str(error) for sign in LOST_CONTACT):
            raise
        raise ValueError(
            f"lost contact with another process ({_first_line(error)}); saved progress is kept"
        ) from error
    finally:
        watch.over.set()
        watch.join()
    dist.destroy_process_group()


def _connect() -> tuple[Any, int, int]:
    """Join the process group; returns a store that all processes share, the rank, and the number of ranks."""
    import torch
    import torch.distributed as dist

    _check_interface()
    try:
        store, rank, ranks = next(dist.rendezvous("env://", timeout=START))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    except dist.DistError as error:
        environ = os.environ
        raise ValueError(
            f"process {environ['RANK']} did not meet all {environ['WORLD_SIZE']} processes at "
            f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']} within {START.seconds // 60} minutes "
            f"({_first_line(error)})"
        ) from error
    return dist.PrefixStore("watch", store.clone()), rank, ranks


def _check_interface() -> None:
    """Raises ValueError if other nodes could not connect to the address that gloo would choose here."""
    interfaces = [name for _, name in socket.if_nameindex()]
    if chosen := os.environ.get("GLOO_SOCKET_IFNAME"):
        missing = [name for name in chosen.split(",") if name not in interfaces]
        if missing:
            raise ValueError(
                f"GLOO_SOCKET_IFNAME={chosen}, but {socket.gethostname()} has the network interfaces "
                f"{', '.join(interfaces)}; name one of these"
            )
        return
    one_node = int(os.environ["WORLD_SIZE"]) <= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if one_node or os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
        return
    name = socket.gethostname()
    with suppress(OSError):  # a name without address: gloo tries the interfaces
        if (address := socket.gethostbyname(name)).startswith("127."):
            raise ValueError(
                f"the name of this node, {name}, stands for {address}, where other nodes cannot reach it; "
                "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network interface between the nodes "
                f"(here: {', '.join(interfaces)}), or correct /etc/hosts"
            )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


class _Watch(threading.Thread):
    """Exchanges signs of life with processes on any node, even while the main thread is blocked."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        super().__init__(daemon=True)
        self.store, self.rank, self.neighbour = store, rank, (rank + 1) % ranks
        self.parent, self.over = int(os.environ.get("CL_PARENT", os.getppid())), threading.Event()
        self._beats, self._since = -1, time.monotonic()

    def report(self, failure: str) -> None:
        """Make all other processes end, with this message unless another one came first."""
        try:
            if not self.store.check(["failed"]):
                self.store.set("failed", failure)
        except RuntimeError:
            pass  # the process that held the store is gone: the others notice

    def run(self) -> None:
        while not self.over.wait(BEAT):
            failure = self._failure()
            if failure and not self.over.is_set():
                click.echo(f"{failure}; saved progress is kept", err=True)
                os._exit(1)

    def _failure(self) -> str | None:
        if os.getppid() != self.parent:
            return "the process that started this one is gone"
        try:
            self.store.add(f"beat {self.rank}", 1)
            beats = self.store.add(f"beat {self.neighbour}", 0)
            if self.store.check(["failed"]):
                return self.store.get("failed").decode()
        except RuntimeError:
            return "lost contact with the other processes"
        if beats != self._beats:
            self._beats, self._since = beats, time.monotonic()
        elif time.monotonic() - self._since > LOST:
            failure = f"process {self.neighbour} has shown no sign of life for {LOST:.0f} s"
            self.report(failure)
            return failure
        return None
