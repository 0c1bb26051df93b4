"""DVCLive: tables in a folder for each run, and DVC Studio if it is set up.

It neither saves an experiment nor writes dvc.yaml, since the run is a stage of DVC.
"""

from pathlib import Path
from typing import Any

from dvclive import Live


class Logger:
    """`cl.console.loggers.Logger`."""

    def __init__(self, name: str, folder: Path, parameters: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")  # `Live.end` adds all other files to Git
        self.where = str(folder / name)
        self._live = Live(self.where, report=None, save_dvc_exp=False, dvcyaml=None)
        self._live.log_params(parameters)

    def log(self, title: str, row: dict[str, float]) -> None:
        self._live.step = int(row["step"])
        for column, value in row.items():
            self._live.log_metric(f"{title}/{column}", value)
        self._live.sync()

    def close(self, *, failed: bool) -> None:
        self._live.end()
