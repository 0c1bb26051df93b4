"""What the environment exposes: `cl` everywhere, nothing else of the project; in a copy, the copy's `cl`."""

import ast
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.project import ROOT

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
COMPOSE = """
import sys
from pathlib import Path
from dvc.utils.hydra import compose_and_dump
copy = Path(sys.argv[1])
conf, plugins = str(copy / "pipeline/conf"), str(copy / "pipeline")
compose_and_dump("params.yaml", conf, None, "config", plugins, ["dataset=unlabelled"])
print(sys.modules["cl"].__file__)
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The environment's Python in a folder."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)


def copy_packages(folder: Path) -> None:
    for package in ("cl", "pipeline"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))


def imported_packages() -> set[str]:
    """The top-level packages that the product imports anywhere, without its own and Python's."""
    found = set()
    for path in [*(ROOT / "cl").rglob("*.py"), *(ROOT / "pipeline").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - {"cl", "pipeline"} - sys.stdlib_module_names


def test_every_imported_package_is_declared() -> None:
    """A package that only comes with another one may go when the other one changes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {normalised(re.match(r"[\w-]+", requirement)[0]) for requirement in declared}  # type: ignore[index]
    providers = importlib.metadata.packages_distributions()
    elsewhere = {"detectron2", "faiss", "triton"}  # compiled from source; faiss-cpu; comes with torch
    for package in imported_packages() - elsewhere:
        assert names & {normalised(name) for name in providers.get(package, [package])}, package


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("lock", ["requirements.lock", "docker/requirements.lock"])
def test_the_locks_have_every_dependency(lock) -> None:
    """`make lock` writes both."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in wanted}  # type: ignore[index]
    assert names <= set(re.findall(r"^([\w-]+)==", (ROOT / lock).read_text(), re.MULTILINE))


@pytest.mark.parametrize("beside_a_clone", [False, True])
def test_cl_is_importable_from_anywhere_without_torch(beside_a_clone, tmp_path) -> None:
    """Also where a folder is called `cl`, as in the folder that contains a clone."""
    if beside_a_clone:
        (tmp_path / "cl").mkdir()
    program = "import sys, cl; print(cl.__doc__, 'torch' in sys.modules, 'numpy' in sys.modules)"
    result = python(tmp_path, "-c", program)
    assert result.stdout.endswith(". False False\n"), result.stderr + "; `make .venv` installs the project"


@pytest.mark.parametrize("name", ["pipeline", "tests", "benchmarks", "docker", "docs"])
def test_no_other_folder_of_the_project_is_importable(tmp_path, name) -> None:
    result = python(tmp_path, "-c", f"import {name}")
    assert f"No module named '{name}'" in result.stderr


def test_a_stage_in_a_copy_of_the_project_uses_the_copy(tmp_path) -> None:
    """As in the temporary folders of `dvc exp run --temp`."""
    copy = tmp_path / ".dvc/tmp/exps/copy"
    copy_packages(copy)
    (copy / "pipeline/where.py").write_text("import cl.config\nprint(cl.config.__file__)\n")
    assert python(copy, "-m", "pipeline.where").stdout.strip() == str(copy / "cl/config/__init__.py")


def test_dvc_composes_with_the_project_of_its_plugins(tmp_path) -> None:
    """In its own process, which has not imported from the project; here with another `cl` on its path."""
    copy, other = tmp_path / "copy", tmp_path / "other"
    copy_packages(copy)
    (other / "cl").mkdir(parents=True)
    (other / "cl/__init__.py").touch()
    result = python(other, "-c", COMPOSE, str(copy))
    assert result.stdout.strip() == str(copy / "cl/__init__.py"), result.stderr
