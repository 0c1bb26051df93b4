"""What the environment exposes: `cl` everywhere, nothing else of the project; in a copy, the copy's `cl`."""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cl.commands import main
from cl.runtime.tables import write_csv
from tests.support.pictures import picture_file
from tests.support.project import ROOT
from tests.support.resnets import save_encoder

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None  # importing it fails
import torch, cl
cl.DCLLoss()(*torch.randn(2, 4, 8))
encoder, labels = cl.load("encoder.safetensors"), "labels.csv"
cl.embed("images", encoder=encoder, to="features.parquet")
cl.search("features.parquet", "images/3.jpg", encoder=encoder)
cl.duplicates("features.parquet", encoder=encoder)
cl.classify(labels, "images", encoder=encoder)
cl.evaluate(encoder, train="images", labels=labels, k=2)
cl.compare(encoder, encoder, train="images", labels=labels, k=2)
cl.export("torchvision", encoder="encoder.safetensors")
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The environment's Python in a folder."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)


def copy_packages(folder: Path) -> None:
    for package in ("cl", "pipeline"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))


def product() -> set[Path]:
    return {*(ROOT / "cl").rglob("*.py"), *(ROOT / "pipeline").rglob("*.py")}


def module_files(name: str) -> set[Path]:
    """The file of the project's module with this name, if there is one."""
    path = ROOT / name.replace(".", "/")
    return {file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()}


def imported_modules(files: set[Path]) -> set[str]:
    """The modules that the files import anywhere; of `from a import b`, both `a` and `a.b`."""
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def imported_packages(files: set[Path]) -> set[str]:
    """The top-level packages that the files import, without the project's and Python's."""
    tops = {name.partition(".")[0] for name in imported_modules(files)}
    return tops - {"cl", "pipeline"} - sys.stdlib_module_names


def declared(*extras: str) -> set[str]:
    """The names of the packages that pyproject.toml requires, with those of the extras."""
    requirements = [*PROJECT["dependencies"], *(each for extra in extras for each in EXTRAS[extra])]
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}  # type: ignore[index]


def undeclared(packages: set[str], names: set[str]) -> set[str]:
    """The packages that none of the distributions with these names provides."""
    providers = importlib.metadata.packages_distributions()
    elsewhere = {"detectron2", "triton"}  # compiled from source; comes with torch
    return {
        package
        for package in packages - elsewhere
        if not names & {re.sub(r"[-_.]+", "-", name).lower() for name in providers.get(package, [package])}
    }


def test_every_imported_package_is_declared() -> None:
    """A package that only comes with another one may go when the other one changes."""
    assert not undeclared(imported_packages(product()), declared(*EXTRAS))


def test_what_commands_and_losses_import_is_declared_without_extras() -> None:
    """But for what they ask for in a sentence."""
    asked_for = {"onnx", "onnxscript", "pillow_heif", "pydicom", "sklearn", "upath", "zarr"}
    seeds = ("cl", "cl/commands", "cl/losses", "cl/networks/backbones")
    files = {path for folder in seeds for path in (ROOT / folder).glob("*.py")}
    while more := {path for name in imported_modules(files) for path in module_files(name)} - files:
        files |= more
    assert not undeclared(imported_packages(files) - asked_for, declared())


@pytest.mark.parametrize("lock", ["requirements.lock", "docker/requirements.lock"])
def test_the_locks_have_every_dependency(lock) -> None:
    """`make lock` writes both."""
    wanted = declared("pipeline")
    assert wanted <= set(re.findall(r"^([\w-]+)==", (ROOT / lock).read_text(), re.MULTILINE))


@pytest.mark.parametrize("beside_a_clone", [False, True])
def test_cl_is_importable_from_anywhere_and_imports_nothing_large(beside_a_clone, tmp_path) -> None:
    """Also where a folder is called `cl`, as in the folder that contains a clone."""
    if beside_a_clone:
        (tmp_path / "cl").mkdir()
    program = "import sys; before = set(sys.modules); import cl; print(*{'cl', *sys.modules} - before)"
    result = python(tmp_path, "-c", program + "; assert cl.__doc__")
    assert result.returncode == 0, result.stderr + "; `make .venv` installs the project"
    assert len(result.stdout.split()) < 20, result.stdout  # torch alone imports more than a thousand


def test_no_other_folder_of_the_project_is_importable(tmp_path) -> None:
    names = ["pipeline", "tests", "benchmarks", "docker", "docs"]
    program = f"from importlib.util import find_spec; print(*filter(find_spec, {names}))"
    result = python(tmp_path, "-c", program)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stderr


@pytest.mark.slow
def test_the_environment_s_dvc_composes_with_the_code_of_the_clone(tmp_path) -> None:
    """It takes a name as typed, and answers a mistake in a line. Without it, DVC composes nothing."""
    copy_packages(tmp_path)
    mistakes = tmp_path / "pipeline/composition/mistakes.py"
    mistakes.write_text(mistakes.read_text().replace("does not exist", "is not in this clone"))
    for name in (".dvc/config", ".gitignore", "dvc.yaml", "params.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run("git init -q && git add -A && git commit -qm start", shell=True, cwd=tmp_path, check=True)

    def queue(*dvc: str | Path, override: str) -> subprocess.CompletedProcess[str]:
        command = [*dvc, "exp", "run", "--queue", "-S", "dataset=unlabelled", "-S", override]
        return subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)

    program = Path(sys.executable).with_name("dvc")
    for dvc in ((program,), (sys.executable, "-m", "dvc")):
        refused = queue(*dvc, override="loss=dclx")
        assert (refused.returncode, "Traceback" in refused.stderr) == (255, False)
        expected = (
            "dclx is not in this clone; did you mean dcl?" if dvc == (program,) else "the-dvc-of-make-venv"
        )
        assert expected in refused.stderr
    assert queue(program, override="dataset.name=it's (1)\\").returncode == 0
    queued = ["git", "show", "refs/exps/celery/stash:params.yaml"]
    params = subprocess.run(queued, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "  name: it's (1)\\\n" in params


def write_labelled_images(folder: Path) -> None:
    """Images of two classes, a table of their labels, and an encoder."""
    rows = []
    for number in range(24):
        picture_file(folder / f"images/{number}.jpg", number)
        rows.append((f"{number}.jpg", "ab"[number % 2]))
    write_csv(folder / "labels.csv", ["path", "label"], rows)
    save_encoder(folder / "encoder.safetensors")


def test_without_fcntl_losses_and_commands_run(tmp_path) -> None:
    """As on Windows."""
    write_labelled_images(tmp_path)
    result = python(tmp_path, "-c", WITHOUT_FCNTL)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("torch", [["torch==2.11.0", "torchvision==0.26.0"], []], ids=["oldest", "newest"])
def test_an_empty_environment_with_the_core_runs_every_command(torch, tmp_path) -> None:
    """With the oldest and the newest torch that pyproject.toml allows."""
    source, work = tmp_path / "source", tmp_path / "work"
    shutil.copytree(ROOT / "cl", source / "cl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    installed = [tmp_path / "env/bin/python", "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*installed, "install", "--quiet", source, *torch], check=True)
    packages = subprocess.run([*installed, "list", "--format=json"], check=True, capture_output=True).stdout
    names = {package["name"] for package in json.loads(packages)} - {"pip"}
    assert len(names) <= 60, sorted(names)

    write_labelled_images(work)
    encoder = ["--encoder", "encoder.safetensors"]
    labelled = ["--train", "images", "--labels", "labels.csv"]
    commands = {
        "advise": ["images", *encoder, "--labels", "labels.csv", "--minutes", "0", "--to", "training.csv"],
        "embed": ["images", *encoder, "--to", "features.parquet"],
        "search": ["features.parquet", "images/3.jpg", *encoder, "--to", "page.html"],
        "duplicates": ["features.parquet", "--images", "images", *encoder, "--to", "copies.csv"],
        "classify": ["--labels", "labels.csv", "--images", "images", *encoder, "--to", "predictions.csv"],
        "compare": ["encoder.safetensors", "encoder.safetensors", *labelled, "--to", "difference.csv"],
        "evaluate": [*encoder, *labelled, "--k", "2", "--to", "accuracies.csv"],
        "export": ["torchvision", *encoder, "--to", "exported.safetensors"],
    }
    assert commands.keys() == main.commands.keys()
    for name, arguments in commands.items():
        command = [tmp_path / "env/bin/cl", name, *arguments]
        result = subprocess.run(command, cwd=work, env=ENVIRONMENT, capture_output=True, text=True)
        assert result.returncode == 0, f"cl {name}: {result.stderr}"
        assert (work / arguments[-1]).stat().st_size
