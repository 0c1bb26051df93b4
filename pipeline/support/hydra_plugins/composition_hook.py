"""A Hydra plugin: `dvc exp run -S` completes and checks parameters with `pipeline.support.composition`.

Neither Hydra nor DVC calls plugins during composition, so this wraps `Hydra.compose_config`. It also silences
two warnings of DVC about outputs that do not exist yet or are empty, which in a first run fill the screen.
"""

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dvc.exceptions import InvalidArgumentError
from hydra._internal.hydra import Hydra

PROJECT = Path(__file__).parents[3]
EXPECTED = {
    "dvc_data.index.checkout": "No file hash info found for '%s'. It won't be created.",
    "dvc.output": "'%s' is empty.",
}


def completed(compose: Callable[..., Any]) -> Callable[..., Any]:
    """`Hydra.compose_config`, completed by `pipeline.support.composition`."""

    @functools.wraps(compose)
    def wrapped(self: Hydra, *args: Any, overrides: list[str], **kwargs: Any) -> Any:
        if sys.path[0] != str(PROJECT):  # `dvc` itself does not import from the project
            sys.path.insert(0, str(PROJECT))
        from pipeline.support import composition

        try:
            composition.check_no_run(Path.cwd())
            return composition.completed(
                lambda chosen: compose(self, *args, overrides=chosen, **kwargs), overrides
            )
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None

    return wrapped


for name in EXPECTED:
    logging.getLogger(name).addFilter(lambda record: record.msg != EXPECTED[record.name])
Hydra.compose_config = completed(Hydra.compose_config)  # type: ignore[method-assign]
