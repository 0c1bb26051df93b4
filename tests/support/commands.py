"""Commands that tests run as users do: their environment, git, and docker/entrypoint.sh."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.project import ROOT

PATIENCE = 120  # seconds


def environment() -> dict[str, str]:
    """This environment with a Git identity and with this Python first on PATH: stages call plain `python`."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DVC_NO_ANALYTICS": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@t.t",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@t.t",
    }


def git(folder: Path, *arguments: str) -> str:
    """What git prints."""
    command = ["git", *arguments]
    result = subprocess.run(
        command, cwd=folder, env=environment(), check=True, capture_output=True, text=True
    )
    return result.stdout


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """docker/entrypoint.sh with these arguments and variables, in a session of its own."""
    return subprocess.Popen(
        [ROOT / "docker/entrypoint.sh", *arguments],
        cwd=folder,
        env=environment() | {"PYTHONPATH": str(ROOT)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    """What docker/entrypoint.sh prints; it must exit with `code`."""
    process = start(folder, *arguments, **variables)
    output = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == code, output
    return output


def wait_for(folder: Path, pattern: str, process: subprocess.Popen[str]) -> Path:
    """The first file that matches, once the process has written it."""
    end = time.monotonic() + PATIENCE
    while not (found := next(folder.glob(pattern), None)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, f"no {pattern} in {folder}"
        time.sleep(0.05)
    return found
