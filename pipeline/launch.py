"""The processes of a stage: one for each GPU, or as many as CL_PROCESSES says; or those that CL_LAUNCH or torchrun start.

A process that dies ends the others within a minute, on all nodes, and says why.
"""

import functools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import IO, Any

import click

from cl.console.stop import StoppedError
from pipeline import command

BEAT, LOST = 2.0, 30.0  # seconds between signs of life, and without one until a process is given up
GRACE = 10.0  # seconds for the others to end by themselves
START, PATIENCE = (
    timedelta(minutes=5),
    timedelta(minutes=30),
)  # for all to come, and for one that is alive but slow


def on_all_devices(function: Callable[..., None]) -> Callable[..., None]:
    """Runs the stage in all its processes; `function` is called in each."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            if int(os.environ["WORLD_SIZE"]) == 1:
                return function(*args, **kwargs)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the launcher has made of it
            with joined():
                return function(*args, **kwargs)
        command.params()  # mistakes are answered once
        this = ["-m", sys.modules["__main__"].__spec__.name, *sys.argv[1:]]  # type: ignore[union-attr]
        if launcher := os.environ.get("CL_LAUNCH"):
            sys.exit(run([[*shlex.split(launcher), *this]], [_launched(launcher)]))
        number = processes()
        if number == 1:
            return function(*args, **kwargs)
        import torch.distributed as dist

        store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )  # a port that is free, until the end
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        common |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number), "CL_PARENT": str(os.getpid())}
        environments = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]
        sys.exit(run([[sys.executable, *this]] * number, environments))

    return wrapped


def _launched(launcher: str) -> dict[str, str]:
    if asked := os.environ.get("CL_PROCESSES"):
        raise ValueError(f"CL_PROCESSES={asked} with CL_LAUNCH={launcher}: choose one of the two")
    if "CL_LAUNCHED" in os.environ:
        raise ValueError(
            f"CL_LAUNCH={launcher} has started this process without RANK and WORLD_SIZE; choose a launcher that sets them, "
            "such as torchrun"
        )
    return {"CL_LAUNCHED": "1"}


def processes() -> int:
    """How many processes this machine runs: CL_PROCESSES, or one for each GPU that is visible, at least one."""
    import torch

    asked, gpus = os.environ.get("CL_PROCESSES"), torch.cuda.device_count()
    if not asked:
        return max(1, gpus)
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"CL_PROCESSES={asked}: give a number of processes, such as 2")
    if 0 < gpus < int(asked):
        raise ValueError(f"CL_PROCESSES={asked}, but {gpus} GPUs are visible: choose {gpus} or fewer")
    return int(asked)


def run(commands: list[list[str]], environments: list[dict[str, str]]) -> int:
    """Run them side by side until all have ended, the others soon after one has failed; the exit code of that one.

    SIGTERM and Ctrl-C are passed on, so that each finishes its step and saves; with CL_STOP they know by themselves. Of all but
    the first, what goes to stderr is shown only if that process was the first to fail.
    """
    with ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        return _run(commands, environments, errors)


def _run(commands: list[list[str]], environments: list[dict[str, str]], errors: Sequence[IO[bytes]]) -> int:
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: asked.append(number))
    if "CL_STOP" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [
        subprocess.Popen(
            command, env={**os.environ, **extra}, stderr=error if number else None, start_new_session=True
        )
        for number, (command, extra, error) in enumerate(zip(commands, environments, errors, strict=True))
    ]
    failed, since = None, 0.0
    while any(child.poll() is None for child in children):
        while asked:
            passed_on = asked.pop(0)
            for child in children:
                child.send_signal(passed_on)
        if failed is None:
            failed = next((number for number, child in enumerate(children) if child.poll()), None)
            since = time.monotonic()
        elif time.monotonic() - since > GRACE and children[failed].returncode not in _STOPPED:
            for child in children:
                child.kill()
        time.sleep(0.05)
    failed = (
        failed
        if failed is not None
        else next((number for number, child in enumerate(children) if child.returncode), 0)
    )
    code = children[failed].returncode
    _tell(failed, len(children), code, errors[failed])
    return code if code >= 0 else 128 - code


_STOPPED = (
    128 + signal.SIGTERM,
    128 + signal.SIGINT,
)  # exit codes of a run that saved itself when it was asked to stop


def _tell(number: int, of: int, code: int, error: IO[bytes]) -> None:
    if code < 0 and of > 1:
        click.echo(
            f"process {number} of {of} was ended by {signal.Signals(-code).name}, and the others with it; "
            "run the same command again to continue from the last checkpoint",
            err=True,
        )
    elif code and number and code not in _STOPPED:
        error.seek(0)
        click.echo(f"process {number} of {of}: {error.read().decode(errors='replace').strip()}", err=True)


@contextmanager
def joined() -> Iterator[None]:
    """This process as one of those that the environment names, watching over its neighbour.

    Raises:
        ValueError: another process is gone.
    """
    import torch
    import torch.distributed as dist

    try:
        store, rank, ranks = next(dist.rendezvous("env://", timeout=START))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    except dist.DistError as error:
        raise ValueError(
            f"process {os.environ['RANK']} has not met all of the {os.environ['WORLD_SIZE']} at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} within {START.seconds // 60} minutes ({_first_line(error)})"
        ) from error
    watch = _Watch(dist.PrefixStore("watch", store.clone()), rank, ranks)
    watch.start()
    try:
        yield
        dist.barrier()
    except StoppedError:  # all stop after the same step
        dist.barrier()  # nobody is gone, and has the launcher end the others, before that is done
        raise
    except Exception as error:
        watch.report(f"process {rank} failed: {error}")
        if any(
            sign in str(error)
            for sign in ("Connection closed", "onnection reset", "onnection refused", "NCCL", "gloo")
        ):
            raise ValueError(
                f"lost contact with another process ({_first_line(error)}); the weights of the last checkpoint are kept"
            ) from error
        raise
    finally:
        watch.over.set()
        watch.join()
    dist.destroy_process_group()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


class _Watch(threading.Thread):
    """Signs of life between processes that may be on other nodes, in a thread that no waiting for the others holds up."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        super().__init__(daemon=True)
        self.store, self.rank, self.neighbour = store, rank, (rank + 1) % ranks
        self.parent, self.over = int(os.environ.get("CL_PARENT", os.getppid())), threading.Event()

    def report(self, what: str) -> None:
        """Tell all other processes to end."""
        try:
            if not self.store.check(["failed"]):
                self.store.set("failed", what)
        except RuntimeError:
            pass  # the process that held the store is gone: the others notice

    def run(self) -> None:
        seen, since = -1, time.monotonic()
        while not self.over.wait(BEAT):
            try:
                self.store.add(f"beat {self.rank}", 1)
                beats = self.store.add(f"beat {self.neighbour}", 0)
                failed = self.store.get("failed").decode() if self.store.check(["failed"]) else None
            except RuntimeError:
                failed = "lost contact with the other processes"
            if os.getppid() != self.parent:
                failed = "the process that started this one is gone"
            elif beats != seen:
                seen, since = beats, time.monotonic()
            elif time.monotonic() - since > LOST:
                failed = f"process {self.neighbour} has shown no sign of life for {LOST:.0f} s"
                self.report(failed)
            if failed and not self.over.is_set():
                click.echo(f"{failed}; the weights of the last checkpoint are kept", err=True)
                os._exit(1)
