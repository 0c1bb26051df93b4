"""The program `dvc` of the environment: DVC, but the project composes and checks what `exp run -S` gives.

DVC has no hook for this. All that it does with Hydra is in `dvc.utils.hydra`: two functions are replaced.
Without this program, DVC composes nothing: `.dvc/config` names a configuration that does not exist.
"""

import logging
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dvc.cli import main
from dvc.exceptions import InvalidArgumentError
from dvc.utils import hydra

EXPECTED = {  # warnings about outputs that do not exist yet or are empty: a first run has many
    "dvc_data.index.checkout": "No file hash info found for '%s'. It won't be created.",
    "dvc.output": "'%s' is empty.",
}


def of_project(module: str, function: str) -> Callable[..., Any]:
    """A function of `pipeline.composition` in the folder where DVC runs, which may be any clone."""

    def call(*arguments: Any) -> Any:
        from dvc.repo import Repo  # slow to import

        if sys.path[0] != (project := Repo.find_root()):
            sys.path.insert(0, project)
        try:
            return getattr(import_module(f"pipeline.composition.{module}"), function)(*arguments)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None

    return call


for name in EXPECTED:
    logging.getLogger(name).addFilter(lambda record: record.msg != EXPECTED[record.name])
write = of_project("compose", "write")
hydra.to_hydra_overrides = of_project("overrides", "parse")
hydra.compose_and_dump = lambda file, *others: write(Path(file), others[-1])  # the last: overrides
sys.exit(main())
