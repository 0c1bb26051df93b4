"""The documentation holds: commands compose or parse, links lead somewhere."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click import Context
from PIL import Image

from cl import commands
from cl.encoders.encoder import Encoder
from tests.support import documentation
from tests.support.documentation import DOCS, PAGES, after
from tests.support.pictures import picture_file
from tests.support.project import ROOT, compose
from tests.support.resnets import save_encoder

COMMANDS = [command for page in PAGES for command in documentation.commands(page)]
RUNS = [run for words in COMMANDS if after(words, "dvc", "exp", "run") for run in documentation.runs(words)]
RUNS += [run for words in COMMANDS if (run := after(words, "python", "-m", "pipeline.compose"))]
ADDED_BY_CONTRIBUTING = ["loss=margin"]  # tests/pipeline/test_contributing.py runs it


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "overrides", sorted({tuple(run) for run in RUNS if run != ADDED_BY_CONTRIBUTING}), ids=" ".join
)
def test_every_experiment_composes(overrides, tmp_path) -> None:
    compose(tmp_path, *overrides)


def test_every_stage_and_option_exists() -> None:
    modules = [words[words.index("-m") + 1 :] for words in COMMANDS if words[0] == "python"]
    assert modules
    for module, *arguments in modules:
        imported = importlib.import_module(module)
        if arguments and module.startswith("pipeline."):
            imported.main.make_context(module, arguments)


def test_every_command_of_cl_and_its_options_exist() -> None:
    found = [
        words[words.index("cl") + 1 :] for words in COMMANDS if words[0] in ("cl", "box") and "cl" in words
    ]
    assert found
    for name, *arguments in filter(None, found):
        command = commands.main.get_command(Context(commands.main), name)
        assert command, name
        if arguments and arguments != ["--help"]:
            command.make_context(name, arguments)


def test_every_dvc_command_has_options_that_exist() -> None:
    from dvc.cli import parse_args

    found = [arguments for words in COMMANDS if (arguments := after(words, "dvc"))]
    assert found
    for arguments in found:
        parse_args(arguments)


def test_every_make_target_exists() -> None:
    targets = re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = {word for words in COMMANDS if words[0] == "make" for word in words[1:]}
    assert {"repro", "table", ".venv", "test"} <= asked
    assert asked <= set(targets)


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_every_file_that_a_page_names_exists(page) -> None:
    code = " ".join(documentation.inline_code(page) + documentation.blocks(page, "sh"))
    for path in re.findall(r"(?<![\w/.])(?:benchmarks|cl|docker|pipeline|tests)/[\w/.]+\.\w+", code):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page) -> None:
    for link in documentation.links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in documentation.anchors(target), link


def test_every_page_is_linked_from_the_readme() -> None:
    """Directly, or from a page that is."""
    reached, found = [ROOT / "README.md"], {ROOT / "README.md"}
    for page in reached:
        linked = {(page.parent / link.partition("#")[0]).resolve() for link in documentation.links(page)}
        new = {target for target in linked if target.suffix == ".md"} - found
        found |= new
        reached += sorted(new)
    assert found >= set(PAGES)


@pytest.fixture
def example_files(tmp_path, monkeypatch) -> Path:
    """The folder with the files that the examples in Python read."""
    save_encoder(tmp_path / "models/backbone.safetensors")
    birds = tmp_path / "pictures/birds"
    birds.mkdir(parents=True)
    for seed, picture in enumerate(
        ("robin", "wren", *(f"pictures/birds/{name}" for name in ("a", "b", "new")))
    ):
        picture_file(tmp_path / f"{picture}.jpg", seed)
    (birds / "labels.csv").write_text("path,label\na.jpg,robin\nb.jpg,wren\n")
    (tmp_path / "birds.txt").write_text("robin.jpg\nb.jpg\n")
    np.save(tmp_path / "birds.npy", np.eye(2, dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_lines_that_load_an_encoder_run(example_files) -> None:
    lines = documentation.blocks(ROOT / "README.md", "python")[0]
    found: dict = {}
    exec(lines, found)
    assert isinstance(found["encoder"], Encoder)
    assert found["features"].shape == (2, found["encoder"].width)
    assert found["images"].shape == (1, 3, 16, 16)
    torch.testing.assert_close(found["again"], found["features"][:1])
    torch.testing.assert_close(found["places"].mean((1, 2)), found["again"])
    torch.testing.assert_close(found["encoder"].embed([Image.open("wren.jpg")]), found["features"][1:])


@pytest.mark.parametrize("lines", documentation.blocks(ROOT / "docs/recipes.md", "python"))
def test_the_recipes_in_python_run(lines, example_files, capsys) -> None:
    found: dict = {}
    exec(lines, found)
    printed = capsys.readouterr().out
    if "classifier" in found:
        assert "robin" in printed or "wren" in printed
    else:
        assert printed == "1.000 robin.jpg\n0.000 b.jpg\n"


def test_the_loop_that_trains_with_a_loss_learns(capsys) -> None:
    (lines,) = documentation.blocks(ROOT / "docs/losses.md", "python")
    exec(lines, {})
    untrained, trained = map(float, re.findall(r"([\d.]+) %", capsys.readouterr().out))
    assert trained > untrained + 3
