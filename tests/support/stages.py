"""Stages whose answers are read, many in one process: starting another takes far longer than a refusal.

`python -m tests.support.stages STAGES`, where STAGES is JSON, prints the answers as JSON.
"""

import importlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from click.testing import CliRunner, Result

from cl import commands
from tests.support.processes import keep_to_one_core, start_fork


@dataclass
class Stage:
    """A stage with its arguments, variables of its environment, and the package that it is in."""

    arguments: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    package: str = "pipeline"


@dataclass
class Answer:
    """The exit code and what was printed, with the traceback of an error that was not answered."""

    code: int
    stdout: str
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


def run_cl(*arguments: object) -> Result:
    """The answer of the command `cl`, in this process."""
    result = CliRunner().invoke(commands.main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def assert_refused(folder: Path, command: str, mistakes: Mapping[str, Sequence[object]]) -> None:
    """Each pattern is found in the one line with which a command of `cl` refuses these arguments."""
    stages = [Stage((command, *map(str, words)), package="cl.commands") for words in mistakes.values()]
    for pattern, answer in zip(mistakes, answers(folder, stages), strict=True):
        assert answer.code == 1, (pattern, answer)
        _, _, error = answer.stderr.partition("Error: ")
        assert re.search(pattern, error), (pattern, answer.stderr)
        assert error.count("\n") == 1, answer.stderr


def start(folder: Path, stage: Stage) -> BaseProcess:
    """Start a stage in a fork that leads a session of its own, so that all its processes can be killed."""
    return start_fork(_lead_session, folder, stage)


def answers_of_copy(folder: Path, stages: list[Stage]) -> list[Answer]:
    """The same of a folder whose code differs from this process's."""
    command = [sys.executable, "-m", __name__, json.dumps([asdict(stage) for stage in stages])]
    environment = {**os.environ, "CL_PROCESSES": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [Answer(**answer) for answer in json.loads(result.stdout)]


def _send_answers(folder: Path, stages: list[Stage], sender: Connection) -> None:
    _enter(folder)
    sender.send([_answer(stage) for stage in stages])


def _lead_session(folder: Path, stage: Stage) -> None:
    os.setsid()
    _enter(folder)
    print(_answer(stage))


def _enter(folder: Path) -> None:
    keep_to_one_core()
    os.chdir(folder)
    os.environ["CL_PROCESSES"] = "1"
    sys.modules["__main__"] = sys.modules[__name__]  # stages start their processes by its name


def _answer(stage: Stage) -> Answer:
    name, *arguments = stage.arguments
    module = importlib.import_module(f"{stage.package}.{name}")
    main = module.main if stage.package == "pipeline" else commands.main.commands[name]
    result = CliRunner().invoke(main, arguments, env=stage.variables)
    error = result.exception
    unanswered = error is not None and not isinstance(error, SystemExit)
    failure = "".join(traceback.format_exception(error) * unanswered)
    return Answer(result.exit_code, result.stdout, result.stderr + failure)


if __name__ == "__main__":
    print(json.dumps([asdict(_answer(Stage(**stage))) for stage in json.loads(sys.argv[1])]))
