"""docker/check_gpu.py on this machine: what it says in the image is part of `docker/check`."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.commands import environment
from tests.support.project import ROOT

pytest.importorskip("triton")
HEADER = Path(sysconfig.get_path("include"), "Python.h")
pytestmark = pytest.mark.skipif(
    not (shutil.which("gcc") and HEADER.exists()), reason="no C compiler or Python.h"
)
LIBRARIES, LIBCUDA = ("libibverbs.so.1", "libmlx5.so.1"), "libcuda.so.1"


def check(folder: Path, *libraries: str, **variables: str) -> list[str]:
    """The lines that it prints where these of LIBRARIES and LIBCUDA can be loaded."""
    c_library = next(
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line
    )
    for library in (*LIBRARIES, LIBCUDA):
        if library in libraries:
            (folder / library).symlink_to(c_library)
        else:
            (folder / library).touch()  # the loader does not look for another one
    environ = environment() | {"TRITON_CACHE_DIR": str(folder / "cache"), "LD_LIBRARY_PATH": str(folder)}
    result = subprocess.run(
        [sys.executable, ROOT / "docker/check_gpu.py"],
        env=environ | {"CC": "gcc"} | variables,
        capture_output=True,
        text=True,
    )
    lines = result.stdout.splitlines()
    assert result.returncode == bool(lines), result.stderr
    return lines


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    assert check(tmp_path / "whole", *LIBRARIES) == []
    *libraries, compiler = check(tmp_path, CC="no-compiler")
    for library, line in zip(LIBRARIES, libraries, strict=True):
        assert line.startswith(f"missing: {library}, without which NCCL uses TCP")
    assert compiler.startswith("missing: something that Triton needs (FileNotFoundError")


@pytest.mark.parametrize(
    ("cached", "given", "expected"),
    [("", "", "{folder}"), ("libcuda.so.1 => /lib/libcuda.so.1", "", ""), ("", "/elsewhere", "/elsewhere")],
    ids=["cache not refreshed", "in the cache", "given"],
)
def test_triton_is_told_where_libcuda_is(cached: str, given: str, expected: str, tmp_path: Path) -> None:
    """A read-only image keeps the linker's cache from before libcuda was mounted."""
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").touch()
    (tmp_path / "ldconfig").write_text(f"#!/bin/sh\necho '{cached}'\n")
    (tmp_path / "ldconfig").chmod(0o755)
    for name in ("entrypoint.sh", "functions.sh"):
        (tmp_path / name).write_text(
            (ROOT / "docker" / name).read_text().replace("/usr/", f"{tmp_path}/usr/")
        )
    environ = environment()
    environ |= {"PATH": f"{tmp_path}:{environ['PATH']}", "TRITON_LIBCUDA_PATH": given}
    command = ["bash", tmp_path / "entrypoint.sh", "printenv", "TRITON_LIBCUDA_PATH"]
    found = subprocess.check_output(command, env=environ, text=True)
    assert found.strip() == expected.format(folder=folder)
