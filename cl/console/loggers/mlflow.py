"""MLflow: logs to the server or store in MLFLOW_TRACKING_URI, by default a database in its folder.

MLFLOW_EXPERIMENT_NAME names the experiment (default cl). `mlflow ui --backend-store-uri <where>` shows runs.
"""

import logging
import os
from pathlib import Path
from typing import Any

import mlflow


class Logger:
    """`cl.console.loggers.Logger`; parameters have dotted names, as on the command line."""

    def __init__(self, name: str, folder: Path, parameters: dict[str, Any]) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        if "MLFLOW_TRACKING_URI" not in os.environ:
            folder.mkdir(parents=True, exist_ok=True)
            mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
        self.where = mlflow.get_tracking_uri()
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "cl"))
        mlflow.start_run(run_name=name)
        mlflow.log_params(_flat(parameters))

    def log(self, title: str, row: dict[str, float]) -> None:
        mlflow.log_metrics(
            {f"{title}/{column}": value for column, value in row.items()}, step=int(row["step"])
        )

    def close(self, *, failed: bool) -> None:
        mlflow.end_run("FAILED" if failed else "FINISHED")


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
