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

if TYPE_CHECKING:
    from cl.console.loggers import Loggers
    from cl.console.progress import Progress, Usage

STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT)  # exit codes of stages that ended as asked
STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO, errno.ESTALE}
TOO_MANY_FILES = {errno.EMFILE, errno.ENFILE}


def entry_point(function: Callable[..., Any]) -> Callable[..., None]:
    """User errors and full disks exit 1 with one line; signals use their own exit code; bugs keep tracebacks.

    Once the file CL_STOP exists, the process gets SIGTERM (see docker/entrypoint.sh). Pillow's notes about
    images are hidden, since commands count the images that cannot be read.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        warnings.filterwarnings("ignore", module=r"PIL\b")
        logging.getLogger("PIL").setLevel(logging.CRITICAL)
        if stop := os.environ.get("CL_STOP"):
            terminate_when_exists(Path(stop))
        with _one_line_errors():
            function(*args, **kwargs)

    return wrapped


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, FloatingPointError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        if error.errno in TOO_MANY_FILES:
            raise click.ClickException(
                f"{error.strerror} ({error.filename}): allow more with `ulimit -n 4096`, then run again"
            ) from error
        if error.errno not in STORAGE_ERRORS:
            raise
        where = f" ({error.filename or f'here or in {tempfile.gettempdir()}, which TMPDIR sets'})"
        raise click.ClickException(f"{error.strerror}{where}: no half-written file is left") from error
    except RuntimeError as error:
        if not re.match(r"DataLoader worker .*(killed by signal|exited unexpectedly)", str(error)):
            raise
        raise click.ClickException(
            "a data worker was killed, probably because memory is full: free some, or start fewer processes, "
            "and run the same command again"
        ) from error
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except StoppedError as error:
        if is_main_process():
            click.echo(str(error), err=True)
        sys.exit(error.exit_code)


def is_main_process() -> bool:
    """Whether this process writes and prints for all processes of the command."""
    return os.environ.get("RANK", "0") == "0"


def progress(title: str, loggers: "Loggers | None" = None) -> "Progress":
    """Progress of the main process, on the terminal and with the loggers."""
    from rich.console import Console  # late, so that --help answers at once

    from cl.console.progress import Progress

    return Progress(title, Console(stderr=True, quiet=not is_main_process()), loggers, usage())


@functools.cache
def usage() -> "Usage":
    """What this process has used; shared by all trainings of a stage."""
    from cl.console.progress import Usage

    return Usage()
