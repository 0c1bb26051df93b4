"""A temporary copy of the project, where benchmarks run stages without changing anything in the project."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sigterm import exits_on_sigterm
from pipeline.plan import peak_of_tree

# Not symlinked: outputs, files a stage must not see, and files copied below.
NOT_LINKED = {"results", "models", "scratch", "report", "params.yaml", "dvc.lock", ".git", ".dvc"}
FOLDERS = ("CL_RAW", "CL_CACHE")  # variables that may be relative to the project
EVERY = 0.2  # minimum seconds between memory samples
SHARE = 50  # times as long as a sample takes, since the kernel walks all of the memory for it


@dataclass(frozen=True)
class Ran:
    """What a command used: seconds, peak bytes on the host (see `peak_of_tree`); and what it printed."""

    seconds: float
    host_bytes: int
    output: str


@dataclass(frozen=True)
class Workplace:
    """The project's files as links, with separate parameters and outputs."""

    folder: Path

    def run(self, module: str, *arguments: str) -> Ran:
        """Run `python -m pipeline.<module>`, and watch its memory and that of its processes.

        Raises:
            ValueError: it has failed; the message is the last line that it printed.
        """
        began, host_bytes = time.monotonic(), 0
        with tempfile.TemporaryFile() as output:
            command = [sys.executable, "-m", f"pipeline.{module}", *arguments]
            process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment(), stdout=output, stderr=output
            )
            try:
                while process.poll() is None:
                    sampled = time.process_time()
                    host_bytes = max(host_bytes, peak_of_tree(process.pid))
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(EVERY, SHARE * (time.process_time() - sampled)))
            finally:
                process.terminate()
                process.wait()
            seconds = time.monotonic() - began
            output.seek(0)
            text = output.read().decode(errors="replace")
        if process.returncode:
            raise ValueError((text.strip() or "no output").splitlines()[-1])
        return Ran(seconds, host_bytes, text)

    def _environment(self) -> dict[str, str]:
        places = {name: os.environ[name] for name in FOLDERS if os.environ.get(name)}
        absolute = {name: x if "://" in x else str(Path(x).absolute()) for name, x in places.items()}
        return {**os.environ, **absolute, "CL_SCRATCH": str(self.folder / "scratch"), "CL_LOG": ""}


@contextmanager
def copy_of_project() -> Iterator[Workplace]:
    """A copy of the project in the current folder; it is removed at the end, also if the end is SIGTERM."""
    with exits_on_sigterm(), tempfile.TemporaryDirectory(prefix="cl-copy-") as name:
        folder = Path(name)
        link_project(folder)
        (folder / "params.yaml").write_bytes(Path("params.yaml").read_bytes())
        (folder / "models").mkdir()
        (folder / "results").mkdir()
        yield Workplace(folder)


def link_project(folder: Path) -> None:
    """Links to the files of the project, which is the current folder, instead of earlier links."""
    for path in Path.cwd().iterdir():
        if path.name not in NOT_LINKED:
            (folder / path.name).unlink(missing_ok=True)
            (folder / path.name).symlink_to(path)
