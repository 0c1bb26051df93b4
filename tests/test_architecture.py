"""The structure of `cl/` and `pipeline/`: imports run one way, those for types included."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from cl.runtime.registry import kinds
from tests.support.project import ROOT

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("cl", "pipeline")
    for path in sorted((ROOT / folder).rglob("*.py"))
}

# Each package of `cl/` and `pipeline/`, with those that it may import; from the bottom up.
MAY_IMPORT = {
    "cl.runtime": "",
    "cl.console": "cl.runtime",
    "cl.images": "cl.console cl.runtime",
    "cl.objective": "cl.runtime",
    "cl.networks": "cl.runtime",
    "cl.statistics": "cl.console cl.runtime",
    "cl.report": "cl.runtime cl.statistics",
    "cl.sources": "cl.console cl.images cl.runtime",
    "cl.shards": "cl.console cl.images cl.runtime cl.sources",
    "cl.losses": "cl.objective cl.runtime",
    "cl.methods": "cl.networks cl.objective cl.runtime",
    "cl.data": "cl.images cl.objective cl.runtime cl.shards",
    "cl.features": "cl.console cl.data cl.runtime",
    "cl.encoders": "cl.console cl.data cl.networks cl.runtime",
    "cl.training": "cl.console cl.data cl.networks cl.objective cl.runtime",
    "cl.pretraining": (
        "cl.console cl.data cl.features cl.methods cl.networks cl.objective cl.runtime cl.statistics "
        "cl.training"
    ),
    "cl.evaluations": (
        "cl.console cl.data cl.features cl.networks cl.objective cl.runtime cl.statistics cl.training"
    ),
    "cl.detection": "cl.console cl.data cl.images cl.networks cl.runtime cl.shards cl.training",
    "cl.analyses": (
        "cl.console cl.data cl.evaluations cl.features cl.losses cl.methods cl.objective "
        "cl.pretraining cl.report cl.runtime cl.statistics"
    ),
    "cl.config": (
        "cl.data cl.detection cl.evaluations cl.losses cl.methods cl.networks cl.objective cl.pretraining "
        "cl.runtime cl.sources cl.training"
    ),
    "cl.commands": (
        "cl.console cl.data cl.encoders cl.evaluations cl.features cl.images cl.losses cl.methods "
        "cl.networks cl.pretraining cl.runtime cl.shards cl.statistics cl.training"
    ),
    "cl": "cl.commands cl.encoders cl.features cl.losses cl.networks cl.objective cl.runtime",
    "pipeline.support": (
        "cl.config cl.console cl.data cl.detection cl.encoders cl.evaluations cl.features cl.methods "
        "cl.networks cl.objective cl.pretraining cl.report cl.runtime cl.sources cl.statistics cl.training"
    ),
    "pipeline.composition": "cl.config cl.encoders cl.networks cl.runtime cl.training pipeline.support",
    "pipeline": (
        "cl cl.analyses cl.config cl.console cl.data cl.encoders cl.evaluations cl.features cl.images "
        "cl.methods cl.networks cl.objective cl.pretraining cl.report cl.runtime cl.shards cl.sources "
        "cl.training pipeline.composition pipeline.support"
    ),
}


def package_of(module: str) -> str:
    """The package that a module is in: a folder of `cl/` or `pipeline/`, or one of these two."""
    top, *rest = module.split(".")
    return f"{top}.{rest[0]}" if rest and f"{top}.{rest[0]}" in MAY_IMPORT else top


def imported(path: Path) -> set[str]:
    """The project's modules that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else node.module for name in modules}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(FILES)


@cache
def imports() -> dict[str, set[str]]:
    return {module: imported(path) for module, path in FILES.items()}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_is_below_it(package) -> None:
    allowed = {package, *MAY_IMPORT[package].split()}
    wrong = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if package_of(module) == package and package_of(other) not in allowed
    ]
    assert not wrong


def test_the_allowed_imports_run_one_way() -> None:
    """The table above is in an order in which each entry names only earlier ones."""
    known: set[str] = set()
    for package, allowed in MAY_IMPORT.items():
        assert set(allowed.split()) <= known, package
        known.add(package)
    assert known == {package_of(module) for module in FILES}


def test_no_imports_are_circular() -> None:
    done: set[str] = set()
    while True:
        free = {module for module in FILES if module not in done and imports()[module] - {module} <= done}
        if not free:
            break
        done |= free
    assert not set(FILES) - done, "these import each other in a circle, or import those that do"


def test_no_test_file_imports_another() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests."):
                assert node.module.startswith("tests.support"), f"{path} imports {node.module}"


def test_stages_start_without_torchvision() -> None:
    """With any data set. It takes as long to import as PyTorch; those that build a network import it then."""
    stages = "check compose prepare pretrain evaluate analyze report plan"
    modules = [f"pipeline.{stage}" for stage in stages.split()]
    modules += [f"cl.sources.{kind}" for kind in kinds("sources")]
    program = f"import sys, {', '.join(modules)}\n"
    program += 'sys.exit(f\'{ {"torchvision", "scipy.stats", "timm"} & sys.modules.keys() or str() }\')'
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert told.stderr.strip() == ""
