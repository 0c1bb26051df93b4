"""Stages whose answers are read, many in one process: starting another takes far longer than a refusal.

`python -m tests.support.stages STAGES`, where STAGES is JSON, prints the answers as JSON.
"""

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from click.testing import CliRunner

from tests.support.processes import start_fork


@dataclass
class Stage:
    """A stage with its arguments, and variables of its environment."""

    arguments: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Answer:
    """The exit code and what went to stderr, with the traceback of an error that was not answered."""

    code: int
    stderr: str


def answers(folder: Path, stages: list[Stage]) -> list[Answer]:
    """The answers of stages that run in the folder, one after another, in a fork of this process."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with receiver:
        process = start_fork(_send_answers, folder, stages, sender)
        sender.close()
        found = receiver.recv()
    process.join()
    return found


def answers_of_copy(folder: Path, stages: list[Stage]) -> list[Answer]:
    """The same of a folder whose code differs from this process's."""
    command = [sys.executable, "-m", __name__, json.dumps([asdict(stage) for stage in stages])]
    environment = {**os.environ, "CL_PROCESSES": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [Answer(**answer) for answer in json.loads(result.stdout)]


def _send_answers(folder: Path, stages: list[Stage], sender: Connection) -> None:
    os.chdir(folder)
    os.environ["CL_PROCESSES"] = "1"
    sys.modules["__main__"] = sys.modules[__name__]  # stages start their processes by its name
    sender.send([_answer(stage) for stage in stages])


def _answer(stage: Stage) -> Answer:
    name, *arguments = stage.arguments
    main = importlib.import_module(f"pipeline.{name}").main
    result = CliRunner().invoke(main, arguments, env=stage.variables)
    error = result.exception
    unanswered = error is not None and not isinstance(error, SystemExit)
    return Answer(result.exit_code, result.stderr + "".join(traceback.format_exception(error) * unanswered))


if __name__ == "__main__":
    print(json.dumps([asdict(_answer(Stage(**stage))) for stage in json.loads(sys.argv[1])]))
