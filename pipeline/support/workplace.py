"""A temporary copy of the project, where stages can be tried without changing anything in the project."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cl.console.stop import exits_on_sigterm
from pipeline.support import locations
from pipeline.support.rehearse import REPORT

# Not linked: what stages write, what they must not find, and what is copied.
OWN = {"results", "models", "scratch", "report", "params.yaml", "dvc.lock", ".git", ".dvc", REPORT.name}
FOLDERS = ("CL_RAW", "CL_CACHE")  # variables that may be relative to the project
EVERY = 0.2  # seconds between looks at the memory, at least
SHARE = 50  # times as long as a look takes, since the kernel walks all of the memory for it


@dataclass
class Ran:
    """What a command used: seconds, peak bytes on the host (see `peak_of_tree`), and bytes it left on disk.

    report: what `pipeline.support.rehearse` wrote; empty for other commands.
    waiting: seconds to add to what the rehearsal says.
    """

    seconds: float
    host_bytes: int
    disk_bytes: int
    report: dict[str, Any] = field(default_factory=dict)
    waiting: float = 0.0

    @property
    def whole_seconds(self) -> float:
        """Seconds with those of the rounds that the rehearsal left out."""
        return self.seconds + self.report["left_out"].get("seconds", 0.0) + self.waiting

    @property
    def gpu_bytes(self) -> int | None:
        """Peak memory of the first GPU, as PyTorch reserves it."""
        return self.report["gpu_bytes"]

    @property
    def loop(self) -> dict[str, float]:
        """The loop that began first, in pretraining that of the steps: `rounds`, and `seconds` of one."""
        return self.report["loops"][0]


@dataclass(frozen=True)
class Workplace:
    """The project's files as links, and folders of its own for parameters and outputs."""

    folder: Path

    def with_optim(self, **changes: Any) -> "Workplace":
        """The same place, after changing parameters of pretraining's `optim`."""
        from cl.config import read

        values = read(Path("params.yaml"))
        values["optim"].update(changes)
        (self.folder / "params.yaml").write_text(json.dumps(values))  # JSON is YAML too
        return self

    def rehearse(self, stage: str, *names: str) -> Ran:
        """Rehearse a stage; its loops run in part, and `Ran.report` says what the rest would use.

        Raises:
            ValueError: the stage has failed.
        """
        (self.folder / REPORT).unlink(missing_ok=True)
        ran = self.run("rehearse", stage, *names)
        ran.report = json.loads((self.folder / REPORT).read_text())
        return ran

    def run(self, module: str, *arguments: str) -> Ran:
        """Run `python -m pipeline.<module>`, and watch its memory and that of its processes.

        Raises:
            ValueError: it has failed; the message is the last line that it printed.
        """
        from cl.runtime.memory import peak_of_tree

        before, began, host_bytes = self._bytes(), time.monotonic(), 0
        with tempfile.TemporaryFile() as output:
            command = [sys.executable, "-m", f"pipeline.{module}", *arguments]
            process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment(), stdout=output, stderr=output
            )
            try:
                while process.poll() is None:
                    looked = time.process_time()
                    host_bytes = max(host_bytes, peak_of_tree(process.pid))
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(EVERY, SHARE * (time.process_time() - looked)))
            finally:
                process.terminate()
                process.wait()
            if process.returncode:
                output.seek(0)
                raise ValueError(_last_line(output.read().decode(errors="replace")))
        return Ran(time.monotonic() - began, host_bytes, self._bytes() - before)

    def _environment(self) -> dict[str, str]:
        places = {name: os.environ[name] for name in FOLDERS if os.environ.get(name)}
        absolute = {name: x if "://" in x else str(Path(x).absolute()) for name, x in places.items()}
        own = {"CL_SCRATCH": str(self.folder / "scratch"), "CL_LOG": ""}
        return {**os.environ, **absolute, **own}

    def _bytes(self) -> int:
        """What stages have written: links and the report do not count."""
        files = [path for name in ("models", "results") for path in (self.folder / name).rglob("*")]
        return sum(path.lstat().st_size for path in files if path.is_file() and not path.is_symlink())


@contextmanager
def copy_of_project() -> Iterator[Workplace]:
    """A copy of the project in the current folder, with the weights that pretraining starts from.

    It is removed at the end, also if the end is SIGTERM.
    """
    with exits_on_sigterm(), tempfile.TemporaryDirectory(prefix="cl-plan-") as name:
        folder = Path(name)
        for path in Path.cwd().iterdir():
            if path.name not in OWN:
                (folder / path.name).symlink_to(path)
        (folder / "params.yaml").write_bytes(Path("params.yaml").read_bytes())
        (folder / "models").mkdir()
        (folder / "results").mkdir()
        if locations.START.is_file():
            (folder / locations.START).symlink_to(locations.START.absolute())
        yield Workplace(folder)


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()] or ["it said nothing"]
    return lines[-1].removeprefix("Error: ")
