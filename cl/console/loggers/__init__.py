"""Loggers, one file each: a class `Logger` that passes a run's parameters and epochs on to another program.

The module has the name of the program's library and of its pip package. It is imported only if CL_LOG names
it.
"""

import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from cl.runtime.registry import kinds, module_of

Row = dict[str, float]
Say = Callable[[str], None]


class Logger(Protocol):
    """A run in another program; `where` is its folder or address, for the user."""

    where: str

    def __init__(self, name: str, folder: Path, parameters: dict[str, Any]) -> None:
        """Begin the run; local files go to `folder`, which may not exist yet."""

    def log(self, title: str, row: Row) -> None:
        """Log the columns of a row, each as `<title>/<column>`, at the row's `step`."""

    def close(self, *, failed: bool) -> None:
        """End the run; `failed` is also true if it was stopped."""


class Loggers:
    """The loggers of a process, which log all of its trainings as one run; the context's end ends the run.

    Each of `names` writes to `<folder>/<name>`. `parameters` returns those of the run, whose name begins with
    `experiment`.
    """

    def __init__(
        self, names: list[str], folder: Path, parameters: Callable[[], dict[str, Any]], experiment: str = ""
    ) -> None:
        self._classes = {name: _class_of(name) for name in names}
        self._folder, self._parameters, self._experiment = folder, parameters, experiment
        self._running: dict[str, Logger] = {}
        self._trainings = Counter[str]()

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._each(lambda logger: logger.close(failed=error is not None))

    def begin(self, title: str, say: Say) -> Callable[[Row], None]:
        """A function that logs the rows of a training; the first training begins the run.

        The second training with the same title, for example with another seed, is logged as `<title>-2`.
        """
        if not self._trainings:
            self._begin_run(title, say)
        self._trainings[title] += 1
        number = self._trainings[title]
        numbered = title if number == 1 else f"{title}-{number}"
        return lambda row: self._each(lambda logger: logger.log(numbered, row))

    def _begin_run(self, title: str, say: Say) -> None:
        self._say = say
        run = "-".join(filter(None, [self._experiment, title, f"{datetime.now():%Y%m%d-%H%M%S}"]))
        parameters = self._parameters()
        for name, logger in self._classes.items():
            try:
                self._running[name] = logger(run, self._folder / name, parameters)
            except Exception as error:
                raise ValueError(f"CL_LOG={name} cannot begin a run: {_one_line(error)}") from error
            say(f"{name} logs to {_without_password(self._running[name].where)}")

    def _each(self, action: Callable[[Logger], None]) -> None:
        """Drop a logger that fails: a long training must not depend on a server."""
        for name, logger in list(self._running.items()):
            try:
                action(logger)
            except Exception as error:  # libraries raise errors of any type
                self._say(f"{name} failed and stops logging: {_one_line(error)}")
                del self._running[name]


def _one_line(error: Exception) -> str:
    return _without_password(" ".join(str(error).split())) or type(error).__name__


def _without_password(text: str) -> str:
    """Remove a password from an address, which for example WANDB_BASE_URL may contain."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def _class_of(name: str) -> type[Logger]:
    if name not in kinds("console.loggers"):
        raise ValueError(f"CL_LOG={name} is unknown; choose from {', '.join(kinds('console.loggers'))}")
    try:
        return module_of("console.loggers", name).Logger
    except ImportError as error:
        raise ValueError(f"CL_LOG={name} needs a package ({error}): run `pip install {name}`") from error
