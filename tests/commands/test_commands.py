"""What all commands share: help at once, and a function of `cl` with the same arguments."""

import inspect
import subprocess
import sys

import click
import pytest

import cl
from cl.commands import SUMMARIES, main
from tests.support.project import ROOT

HELP = """
import sys
from click.testing import CliRunner
from cl.commands import main
for arguments in (["--help"], *([name, "--help"] for name in sys.argv[1:])):
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 0, answer.output
    print(answer.output)
print({"torch", "numpy", "pyarrow", "PIL", "sklearn", "rich"} & set(sys.modules))
"""


def test_help_imports_nothing_that_takes_long() -> None:
    command = [sys.executable, "-c", HELP, *SUMMARIES]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed.endswith("set()\n")
    for name, summary in SUMMARIES.items():
        assert f"cl {name} [OPTIONS]" in printed or f"main {name} [OPTIONS]" in printed
        assert summary in printed


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_command_is_a_function_of_cl_with_the_same_arguments(name) -> None:
    command = main.get_command(click.Context(main), name)
    function = getattr(cl, name)
    assert command is not None
    assert {parameter.name for parameter in command.params} == set(inspect.signature(function).parameters)
    assert function.__doc__


def test_the_command_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "cl", "serach"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert "No such command 'serach'" in result.stderr
