"""The program `dvc` of the environment: DVC, but the project composes and checks what `exp run -S` gives.

DVC has no hook for this. All that it does with Hydra is in `dvc.utils.hydra`: two functions are replaced.
Without this program, DVC composes nothing: `.dvc/config` names a configuration that does not exist.
"""

import logging
import re
import sys
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
SAID = re.compile(r"python -m pipeline\..*, exited with (1|130|143)$")  # by a stage whose last lines say why


def replace(name: str, module: str, ours: str) -> None:
    """In a clone of this project, replace a function of `dvc.utils.hydra` by the clone's own."""
    theirs = getattr(hydra, name)

    def call(*arguments: Any) -> Any:
        from dvc.repo import Repo  # slow to import

        project = Repo.find_root()
        if not Path(project, "pipeline/composition").is_dir():
            return theirs(*arguments)
        if sys.path[0] != project:
            sys.path.insert(0, project)
        function = getattr(import_module(f"pipeline.composition.{module}"), ours)
        try:
            return function(*arguments[:1], *arguments[5:])  # of `compose_and_dump`, file and overrides
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None

    setattr(hydra, name, call)


def cause_of(record: logging.LogRecord) -> BaseException | None:
    """What caused the error that DVC logs."""
    error = record.exc_info and record.exc_info[1]
    return error.__cause__ if error else None


for logger in EXPECTED:
    logging.getLogger(logger).addFilter(lambda record: record.msg != EXPECTED[record.name])
logging.getLogger("dvc.cli").addFilter(lambda record: not SAID.search(str(cause_of(record))))
replace("to_hydra_overrides", "overrides", "parse")
replace("compose_and_dump", "compose", "write")
sys.exit(main())
