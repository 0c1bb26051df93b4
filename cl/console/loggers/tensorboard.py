"""TensorBoard: files in a folder for each run; `tensorboard --logdir <folder>` shows all runs."""

import json
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


class Logger:
    """`cl.console.loggers.Logger`; parameters are logged as the text `parameters`."""

    def __init__(self, name: str, folder: Path, parameters: dict[str, Any]) -> None:
        self.where = str(folder / name)
        self._writer = SummaryWriter(self.where)
        self._writer.add_text("parameters", f"```\n{json.dumps(parameters, indent=1)}\n```")

    def log(self, title: str, row: dict[str, float]) -> None:
        for column, value in row.items():
            self._writer.add_scalar(f"{title}/{column}", value, row["step"])
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        self._writer.close()
