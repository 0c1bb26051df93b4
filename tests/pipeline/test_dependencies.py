"""The dependencies in dvc.yaml are exactly what each stage imports."""

import ast
import functools
from pathlib import Path

import pytest

from cl.config import read
from cl.runtime.registry import kinds
from tests.support.project import ROOT

# They check, print and publish; what they pass on is tracked as parameter or output.
# No stage uses `cl.load`.
GLUE = ("cl/__init__.py", "cl/config/", "cl/console/", "cl/runtime/base_config.py", "cl/runtime/registry.py")
GLUE += ("pipeline/__init__.py", "pipeline/composition/")
GLUE += tuple(f"pipeline/support/{name}.py" for name in ("command", "locations", "provenance", "runs"))
read_cached = functools.cache(read)


@functools.cache
def imports(path: Path) -> set[Path]:
    """The project's files that a file imports directly, anywhere in it except for type checking."""
    found = set()
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if ast.unparse(getattr(node, "test", node)) != "TYPE_CHECKING"]
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            base = ROOT / name.replace(".", "/")
            found |= {p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()}
    return found


@functools.cache
def is_only_a_docstring(path: Path) -> bool:
    return len(ast.parse(path.read_text()).body) <= 1


def closure(stage: str, paths: set[Path]) -> set[str]:
    """All project files that a stage's `paths` import, directly or not; glue is neither followed nor listed.

    Only `weights` depends on how foreign encoders are read: `evaluate` reads them outside DVC, and for
    `baseline` an edit would train the supervised one again.
    """
    todo, seen = list(paths), set()
    ignored = GLUE if stage == "weights" else (*GLUE, "cl/encoders/foreign.py")
    while todo:
        path = todo.pop()
        name = str(path.relative_to(ROOT))
        if name.startswith(ignored) or name in seen or is_only_a_docstring(path):
            continue
        seen.add(name)
        todo += imports(path)
    return seen


def declared(stage: str, group: str, kind: str) -> tuple[set[str], set[str]]:
    """The source files that dvc.yaml lists for a stage, and those of them that depend on a kind.

    The experiment is the default one, except that `group` (the data set, method or loss) is of this `kind`.
    """
    values = dict(read_cached(ROOT / "params.yaml"))
    values[group] = {**values[group], "kind": kind}
    stages = read_cached(ROOT / "dvc.yaml")["stages"]
    entries = [None] if "do" not in stages[stage] else [*values[stages[stage]["foreach"][2:-1]].values()]
    if stage in ("analyze", "evaluate"):
        package = {"analyze": "analyses", "evaluate": "evaluations"}[stage]
        entries = [{"kind": kind} for kind in kinds(package)]
    files: set[str] = set()
    chosen: set[str] = set()
    for entry in entries:
        for template in stages[stage].get("do", stages[stage])["deps"]:
            dependency = template
            for key, value in {**values, "item": entry}.items():
                for choice in {"kind", "engine"} & set(value if isinstance(value, dict) else ()):
                    dependency = dependency.replace(f"${{{key}.{choice}}}", value[choice])
            found = {dependency} if dependency.endswith(".py") else set()
            if (ROOT / dependency).is_dir() and dependency.startswith("cl/"):
                found = {f"{dependency}/"}
            files |= found
            if dependency != template:
                chosen |= found
    return files, chosen


@pytest.mark.parametrize(
    "stage",
    ["prepare", "weights", "pretrain", "evaluate", "transfer", "analyze", "baseline", "report"],
)
def test_dependencies_are_exactly_what_a_stage_imports(stage) -> None:
    """With too few, an edit would go unnoticed; with too many, it would train again for nothing."""
    listed: set[str] = set()
    needed: set[str] = set()
    packages = {"dataset": "sources", "method": "methods", "loss": "losses"}
    for group, kind in [(group, kind) for group, package in packages.items() for kind in kinds(package)]:
        files, chosen = declared(stage, group, kind)
        imported = closure(stage, {ROOT / f"pipeline/{stage}.py", *(ROOT / name for name in chosen)})
        folders = tuple(name for name in files if name.endswith("/"))
        imported = {next((f for f in folders if name.startswith(f)), name) for name in imported}
        assert imported <= files
        listed |= files
        needed |= imported
    assert listed == needed
