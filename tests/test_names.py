"""What `import cl` offers."""

import importlib.metadata
import subprocess
import sys

import cl
from tests.support.project import ROOT

IMPORT = "import sys; before = set(sys.modules); import cl; print(*set(sys.modules) - before)"


def test_importing_is_fast_because_it_imports_nothing_large() -> None:
    command = [sys.executable, "-c", IMPORT]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "cl" in found
    assert len(found) < 20, found  # torch alone imports more than a thousand


def test_every_name_is_found_and_described() -> None:
    for name in cl.__all__:
        assert getattr(cl, name).__doc__, name
        assert f"    {name}" in cl.__doc__, f"help(cl) lacks {name}"
    assert set(cl.__all__) <= set(dir(cl))
    assert cl.__version__ == importlib.metadata.version("cl")
    assert not hasattr(cl, "InfoNCELos")
