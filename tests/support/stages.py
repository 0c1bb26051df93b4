"""Stages whose answers are read, many in one interpreter: starting one takes far longer than a refusal.

`python -m tests.support.stages STAGES`, where STAGES is JSON, prints the answers as JSON.
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from click.testing import CliRunner


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
    """The answers of stages that run in the folder, one after another."""
    command = [sys.executable, "-m", __name__, json.dumps([asdict(stage) for stage in stages])]
    environment = {**os.environ, "CL_PROCESSES": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [Answer(**answer) for answer in json.loads(result.stdout)]


def _answer(stage: Stage) -> Answer:
    name, *arguments = stage.arguments
    main = importlib.import_module(f"pipeline.{name}").main
    result = CliRunner().invoke(main, arguments, env=stage.variables)
    error = result.exception
    unanswered = error is not None and not isinstance(error, SystemExit)
    return Answer(result.exit_code, result.stderr + "".join(traceback.format_exception(error) * unanswered))


if __name__ == "__main__":
    print(json.dumps([asdict(_answer(Stage(**stage))) for stage in json.loads(sys.argv[1])]))
