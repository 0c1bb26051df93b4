"""What all commands share: help at once, and a function of `cl` with the same arguments."""

import inspect
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

import cl
from cl.commands import main
from tests.support.project import ROOT
from tests.support.stages import assert_refused

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
    python = [sys.executable, "-c", HELP, *main.commands]
    printed = subprocess.run(python, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed.endswith("set()\n")
    for name, command in main.commands.items():
        assert f"cl {name} [OPTIONS]" in printed or f"main {name} [OPTIONS]" in printed
        assert command.short_help in printed


@pytest.mark.parametrize("name", main.commands)
def test_a_command_is_a_function_of_cl_with_the_same_arguments(name) -> None:
    function = getattr(cl, name)
    assert {parameter.name for parameter in main.commands[name].params} == set(
        inspect.signature(function).parameters
    )
    assert function.__doc__


@pytest.mark.parametrize("words", ["classify --images a.jpg b.jpg", "evaluate --train a.jpg b.jpg"])
def test_images_without_their_option_are_told_where_they_belong(words) -> None:
    answer = CliRunner().invoke(main, words.split())
    assert answer.exit_code == 2
    assert f"(b.jpg); put {words.split()[1]} before each image" in answer.output
    assert "quote a name that has spaces" in CliRunner().invoke(main, ["advise", "my", "birds"]).output


@pytest.mark.parametrize("columns", [["label"], ["label=cat", "label=dog"]])
def test_a_column_has_one_name_and_none_is_dropped(columns) -> None:
    words = [word for column in columns for word in ("--column", column)]
    answer = CliRunner().invoke(main, ["classify", "--labels", "a.csv", "--images", "a.jpg", *words])
    assert answer.exit_code == 2
    assert f"found {' and '.join(columns)}, expected NAME=COLUMN" in answer.output


@pytest.mark.parametrize(
    "words",
    [
        "embed table.csv --to table.csv",
        "embed a.jpg table.csv --to ../here/table.csv",
        "embed list.txt --to list.npy",
        "classify --labels table.csv --images a.jpg --to table.csv",
        "classify --labels table.csv --images other.csv --to other.csv",
        "classify --labels table.csv --features b.parquet --to b.parquet",
        "classify --labels table.csv --images a.jpg --save encoder.safetensors",
        "classify --labels table.csv --images a.jpg --encoder e.safetensors --finetune --save l.safetensors",
        "search b.parquet a.jpg --to b.parquet",
        "search b.parquet other.csv --to other.csv",
        "duplicates b.parquet --to b.parquet",
        "evaluate --train a.jpg --labels table.csv --to table.csv",
        "evaluate --train table.csv --val other.csv --to other.csv",
        "compare encoder.safetensors link.safetensors --train a.jpg --labels table.csv --to table.csv",
        "export torchvision --encoder link.safetensors --to encoder.safetensors",
        "export timm --encoder folder/model.safetensors --to folder",
    ],
)
def test_no_command_overwrites_what_it_reads(words, tmp_path) -> None:
    here = tmp_path / "here"
    for folder in ("folder", "models"):
        (here / folder).mkdir(parents=True)
    names = (
        "table.csv other.csv list.txt list.npy b.parquet a.jpg encoder.safetensors folder/model.safetensors "
        "models/backbone.safetensors"
    )
    for name in names.split():
        (here / name).write_text("content")
    for name in ("link", "e", "l-encoder"):
        (here / f"{name}.safetensors").symlink_to("encoder.safetensors")
    command, *arguments = shlex.split(words)
    assert_refused(here, command, {"would overwrite": arguments})
    assert {(here / name).read_text() for name in names.split()} == {"content"}
    assert len([*here.rglob("*")]) == 14


def test_the_command_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "cl", "serach"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert "No such command 'serach'" in result.stderr
