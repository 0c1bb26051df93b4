"""What every command refuses in a sentence, and how it prints names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cl.commands import main
from cl.commands.jobs import near_duplicates


@pytest.mark.parametrize(
    ("variables", "folder", "expected"),
    [
        ({"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ".", "put PYTHONUTF8=1 before"),
        ({}, "gone", "the current folder was deleted"),
    ],
)
def test_where_and_on_what_no_command_can_work(variables, folder, expected, tmp_path) -> None:
    gone = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n" if folder == "gone" else ""
    program = f"{gone}from cl.commands import main; main()"
    command = [sys.executable, "-P", "-c", program, "search", "a.parquet", "b"]
    found = subprocess.run(command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.count("\n") == 1
    assert expected in found.stderr


def test_control_characters_of_names_are_shown() -> None:
    answer = CliRunner().invoke(main, ["search", "a\x1b[31m.parquet", "b"])
    assert answer.output.startswith("Error: a\\x1b[31m.parquet is not a file of features")
    assert answer.output.count("\n") == answer.exit_code == 1


def test_an_array_in_a_file_has_its_space_before_it_is_written(tmp_path) -> None:
    """On a full disk, writing to mapped memory would end the process with SIGBUS."""
    with Path(tmp_path / "file").open("w+b") as file:
        assert near_duplicates._in_file(file, float, (1000, 8)).shape == (1000, 8)
        assert os.fstat(file.fileno()).st_blocks * 512 >= 64_000
