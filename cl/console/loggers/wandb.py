"""Weights & Biases; WANDB_MODE=offline keeps a run local, WANDB_PROJECT and WANDB_DIR are its places."""

import os
from pathlib import Path
from typing import Any

import wandb


class Logger:
    """A `Logger`; the step is the column `<title>/step`, since the library's own step must never decrease."""

    def __init__(self, name: str, folder: Path, parameters: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "cl"),
            name=name,
            dir=os.environ.get("WANDB_DIR", folder),
            config=parameters,
            settings=wandb.Settings(console="off", silent=True),
        )
        self.where = str(Path(self._run.dir).parent) if self._run.offline else str(self._run.url)
        self._titles = set[str]()

    def log(self, title: str, row: dict[str, float]) -> None:
        if title not in self._titles:
            self._titles.add(title)
            self._run.define_metric(f"{title}/*", step_metric=f"{title}/step")
        self._run.log({f"{title}/{column}": value for column, value in row.items()})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
