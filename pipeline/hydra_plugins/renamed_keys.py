"""A Hydra plugin: the error for an override of a renamed key gives the key's new name."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.errors import ConfigCompositionException

PROJECT = Path(__file__).parents[2]


def naming_new_keys(compose: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Hydra.compose_config`, since neither Hydra nor DVC notifies plugins of overrides that fail."""

    @functools.wraps(compose)
    def wrapped(self: Hydra, *args: Any, overrides: list[str], **kwargs: Any) -> Any:
        try:
            return compose(self, *args, overrides=overrides, **kwargs)
        except ConfigCompositionException:
            sys.path.append(str(PROJECT))  # `dvc` itself does not import from the project
            from cl.config import RENAMED, renamed

            for key in [override.partition("=")[0] for override in overrides]:
                if key in RENAMED:
                    raise ConfigCompositionException(renamed(key)) from None
            raise

    return wrapped


Hydra.compose_config = naming_new_keys(Hydra.compose_config)  # type: ignore[method-assign]
