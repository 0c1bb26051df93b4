"""The structure of `cl/`: packages that import one way only, files and functions of readable size."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("cl", "pipeline")
    for path in sorted((ROOT / folder).rglob("*.py"))
}

# Each package, or file of the top level, with those that it may import; from the bottom up.
MAY_IMPORT = {
    "batch": "",
    "charts": "",
    "runtime": "",
    "console": "",
    "loggers": "runtime",
    "reductions": "runtime",
    "contrast": "reductions runtime",
    "networks": "runtime",
    "report": "charts runtime",
    "sources": "console runtime",
    "shards": "console runtime sources",
    "losses": "contrast runtime",
    "methods": "batch contrast networks reductions runtime",
    "data": "batch runtime shards",
    "features": "console data runtime",
    "training": "batch console data networks runtime",
    "pretraining": "batch console contrast data features methods networks runtime training",
    "evaluations": "batch console data features networks runtime training",
    "detection": "console data networks runtime sources training",
    "exchange": "data detection features networks runtime shards sources",
    "analyses": "batch charts console contrast data evaluations features losses methods networks pretraining "
    "runtime",
    "rules": "contrast data evaluations networks runtime",
    "config": "data detection losses methods networks pretraining rules runtime sources training",
}


def package_of(module: str) -> str:
    """The package of `cl/` that a module is in, or its own name at the top level."""
    top, *rest = module.split(".")
    return rest[0] if top == "cl" and rest else top


def imported(path: Path) -> set[str]:
    """The project's modules that a file imports anywhere, except for types."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for block in ("body", "orelse"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                kept = [
                    s for s in statements if "TYPE_CHECKING" not in ast.unparse(getattr(s, "test", s))[:20]
                ]
                setattr(node, block, kept)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {name for name in names if name in FILES}
    return found


IMPORTS = {module: imported(path) for module, path in FILES.items()}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_is_below_it(package) -> None:
    allowed = {package, "cl", *MAY_IMPORT[package].split()}
    for module, others in IMPORTS.items():
        if module.startswith("cl.") and package_of(module) == package:
            assert {package_of(other) for other in others} <= allowed, module


def test_the_allowed_imports_run_one_way() -> None:
    """The table above is in an order in which each entry names only earlier ones."""
    known: set[str] = set()
    for package, allowed in MAY_IMPORT.items():
        assert set(allowed.split()) <= known, package
        known.add(package)
    assert known == {package_of(module) for module in FILES if module.startswith("cl.")}


def test_no_imports_are_circular() -> None:
    done: set[str] = set()
    while True:
        free = {module for module in FILES if module not in done and IMPORTS[module] - {module} <= done}
        if not free:
            break
        done |= free
    assert not set(FILES) - done, "these import each other in a circle, or import those that do"


def test_there_are_at_most_25_packages() -> None:
    assert len({path.parent for path in FILES.values()}) <= 25


def test_no_file_has_more_than_300_lines() -> None:
    for path in [*FILES.values(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 300, path


def test_no_method_has_more_than_100_lines() -> None:
    """An objective that needs more is hard to hold beside its paper; what several share is in `_shared`."""
    for path in set((ROOT / "cl/methods").glob("*.py")) - {ROOT / "cl/methods/__init__.py"}:
        assert len(path.read_text().splitlines()) <= 100, path


def test_functions_are_short() -> None:
    """Docstrings included: half have at most 8 lines, 95 of 100 at most 25, and none has more than 50."""
    lengths = {}
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                lengths[f"{module}.{node.name}:{node.lineno}"] = node.end_lineno - node.lineno + 1
    ordered = sorted(lengths.values())
    assert ordered[len(ordered) // 2] <= 8
    assert ordered[int(0.95 * len(ordered))] <= 25
    assert not {name: length for name, length in lengths.items() if length > 50}


def test_a_stage_that_has_read_its_parameters_has_imported_every_native_path() -> None:
    """It verifies the paths when it sets up the device; one declared later would never be used."""
    code = "import sys, cl.config; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    declaring = {module for module, path in FILES.items() if "native.declare(" in path.read_text()}
    assert declaring <= {*run.stdout.split(), "cl.runtime.native"}


def test_no_test_file_imports_another() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests."):
                assert node.module.startswith("tests.support"), f"{path} imports {node.module}"


# Names of version 0.1 that said less than the field's terms.
OLD_NAMES = {
    *("sent", "settle", "heed", "push", "drawn", "skip", "Strict", "Inputs", "Framework", "framework"),
    *("Answers", "of_run", "look", "chunks", "pieces", "alone", "Found", "cross", "store", "box"),
}


def test_old_names_do_not_come_back() -> None:
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            defined = (
                getattr(node, "name", None) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
            )
            assert defined not in OLD_NAMES, f"{module}: {defined}"
            if isinstance(node, ast.keyword | ast.arg) and module.startswith("cl.methods"):
                assert node.arg not in OLD_NAMES, f"{module}: {node.arg}"
