"""A Hydra plugin that extends composition.

It names the new key of a renamed one, leaves out what data without labels cannot have, and adds the hashes of
the starting weights.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict

PROJECT = Path(__file__).parents[2]


def extended(compose: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Hydra.compose_config`, since neither Hydra nor DVC calls plugins when they compose."""

    @functools.wraps(compose)
    def wrapped(self: Hydra, *args: Any, overrides: list[str], **kwargs: Any) -> Any:
        try:
            composed = compose(self, *args, overrides=overrides, **kwargs)
            return _with_hashes(_without_what_needs_labels(composed))
        except ConfigCompositionException:
            _find_project()
            from cl.config import RENAMED, renamed

            for key in [override.partition("=")[0] for override in overrides]:
                if key in RENAMED:
                    raise ConfigCompositionException(renamed(key)) from None
            raise

    return wrapped


def _find_project() -> None:
    """`dvc` itself does not import from the project; an installed `cl` may be that of another copy."""
    if sys.path[0] != str(PROJECT):
        sys.path.insert(0, str(PROJECT))


def _without_what_needs_labels(composed: DictConfig) -> DictConfig:
    """The parameters without the evaluations, analyses and baselines that data without labels cannot have."""
    if OmegaConf.select(composed, "dataset.labels") != "none":
        return composed
    _find_project()
    from cl.rules import needing_labels

    left_out = needing_labels(OmegaConf.to_container(composed))  # type: ignore[arg-type]
    with open_dict(composed):
        for group, name in left_out:
            del composed[group][name]
    if left_out:
        names = ", ".join(name for _, name in left_out)
        print(f"dataset.labels=none: left out {names}, which need labels", file=sys.stderr)
    return composed


def _with_hashes(composed: DictConfig) -> DictConfig:
    """The parameters with the content of `init` and `start_from` beside their names."""
    init, start_from = (OmegaConf.select(composed, key) for key in ("init", "start_from"))
    if init is None and start_from is None:
        return composed
    _find_project()
    from pipeline import weights

    try:
        if init is not None:
            OmegaConf.update(composed, "init", weights.resolve_init(str(init)), force_add=True)
        if start_from is not None:
            ours = [str(key) for key in composed if key != "hydra"]
            values: Any = OmegaConf.to_container(OmegaConf.masked_copy(composed, ours), resolve=True)
            resolved = weights.resolve_start(str(start_from), values)
            OmegaConf.update(composed, "start_from", resolved, force_add=True)
    except ValueError as error:
        raise ConfigCompositionException(str(error)) from None
    return composed


Hydra.compose_config = extended(Hydra.compose_config)  # type: ignore[method-assign]
