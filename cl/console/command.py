"""What every command shares: one-line errors, exit codes, and progress on the terminal."""

import errno
import functools
import logging
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cl.console.stop import StoppedError, terminate_when_exists
from cl.console.wording import printable

if TYPE_CHECKING:
    from cl.console.loggers import Loggers
    from cl.console.progress import Progress

STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT)  # exit codes of stages that ended as asked
FULL_OR_BROKEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}
STORAGE_ERRORS = FULL_OR_BROKEN | {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EMFILE}
# What CUDA, NCCL, PyTorch on the CPU, cuDNN and cuBLAS say.
NO_MEMORY = re.compile("out of memory|can't allocate memory|(CUDNN|CUBLAS)_STATUS_ALLOC_FAILED")


def entry_point(function: Callable[..., Any], less_memory: str = "") -> Callable[..., None]:
    """User errors and full disks exit 1 with one line; signals use their own exit code; bugs keep tracebacks.

    Once the file CL_STOP exists, the process gets SIGTERM (see docker/entrypoint.sh). Pillow's notes about
    images are hidden, since commands count those that cannot be read. `less_memory`: how to use less memory.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        warnings.filterwarnings("ignore", module=r"PIL\b")
        logging.getLogger("PIL").setLevel(logging.CRITICAL)
        if stop := os.environ.get("CL_STOP"):
            terminate_when_exists(Path(stop))
        with _one_line_errors(less_memory):
            _check_environment()
            function(*args, **kwargs)

    return wrapped


def _check_environment() -> None:
    """Refuse a current folder that is gone, and a locale in which Python cannot write all names of files."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise ValueError("the current folder was deleted; change to another one") from error
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise ValueError(f"file names are read as {encoding}, not UTF-8; put PYTHONUTF8=1 before the command")


def echo(text: str, *, err: bool = False) -> None:
    """Print a result that may contain names of files."""
    click.echo(printable(text), err=err)


@contextmanager
def _one_line_errors(less_memory: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except StoppedError as error:
        if is_main_process():
            echo(str(error), err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if not (sentence := _explained(error, less_memory)):
            raise
        raise click.ClickException(printable(sentence)) from error


def _explained(error: Exception, less_memory: str) -> str:
    """What users read about their own mistakes and about a machine that fails; empty for a bug."""
    reason = str(error)
    if isinstance(error, ValueError | FloatingPointError):
        return reason
    if is_out_of_memory(error):
        if re.search("cuda|cudnn|cublas", reason, re.IGNORECASE):
            less = less_memory or "put CUDA_VISIBLE_DEVICES= before the command to use the CPU"
            return f"a GPU's memory is full: end other programs on it, which `nvidia-smi` lists, or {less}"
        return f"memory is full: end other programs, or {less_memory or 'start fewer processes'}"
    if isinstance(error, OSError) and error.errno in STORAGE_ERRORS:
        where = str(error.filename or f"here or in {tempfile.gettempdir()}, which TMPDIR sets")
        left = f"{error.strerror} ({where}): no half-written file is left"
        if (found := re.match(r".*?\.partial(?=/)", where)) and Path(found[0]).exists():
            left += f"; the same command continues from the finished parts in {found[0]}"
        return left
    first_line = reason.partition("\n")[0]
    if type(error).__name__ == "AcceleratorError" and "assert" not in first_line:
        return f"the GPU failed ({first_line}): see what `nvidia-smi` says, and run the same command again"
    if re.match(r"DataLoader worker .*(killed by signal|exited unexpectedly)", reason):
        return (
            "a data worker was killed, probably because memory is full: free some, or start fewer processes, "
            "and run the same command again"
        )
    return ""


def is_out_of_memory(error: Exception) -> bool:
    """Whether the memory of a GPU or of the machine is full."""
    if isinstance(error, RuntimeError):
        return NO_MEMORY.search(str(error)) is not None
    return isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM


def is_main_process() -> bool:
    """Whether this process writes and prints for all processes of the command."""
    return os.environ.get("RANK", "0") == "0"


def progress(title: str, loggers: "Loggers | None" = None) -> "Progress":
    """Progress of the main process, on the terminal and with the loggers."""
    from rich.console import Console  # late, so that --help answers at once

    from cl.console.progress import Progress

    return Progress(title, Console(stderr=True, quiet=not is_main_process()), loggers)
