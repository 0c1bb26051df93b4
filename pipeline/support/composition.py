"""Compose parameters from pipeline/conf: complete, checked, and with the overrides that they come from.

`dvc exp run -S` composes with Hydra, whose plugin in pipeline/hydra_plugins calls `completed`. Everything
else calls `compose` or `write`. A wrong override raises ValueError with one sentence, and nothing is written.
DVC then exits with 255, and `python -m pipeline.compose` with 1, like every stage.
"""

import functools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from cl import config
from cl.config import rules
from cl.runtime.base_config import suggestion
from pipeline.support import weight_hashes

CONF = Path(__file__).parents[1] / "conf"
WEIGHTS = ("init", "start_from")
NAMES = ("dataset.name", "dataset.table", "dataset.store", *WEIGHTS)  # parameters that accept any text
Compose = Callable[[list[str]], DictConfig]


def compose(overrides: list[str]) -> dict[str, Any]:
    """The parameters of `dvc exp run -S ...` with these overrides.

    Raises:
        ValueError: they are wrong.
    """
    with initialize_config_dir(str(CONF), version_base=None):
        load = GlobalHydra.instance().config_loader().load_configuration
        return _parameters(completed(lambda chosen: load("config", chosen, RunMode.RUN), overrides))


def write(file: Path, overrides: list[str]) -> None:
    """Write the composed parameters, byte for byte as DVC does."""
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(compose(overrides))))


def command_for(params: config.Params) -> str | None:
    """The command that runs these parameters; None if their overrides compose to others.

    In that case params.yaml was edited by hand, or pipeline/conf has changed since it was composed.
    """
    try:
        given = OverridesParser.create().parse_overrides(params.overrides)
        others = [str(override.input_line) for override in given if override.key_or_group not in WEIGHTS]
        composed = config.check(compose(others))  # without weights: their files may be gone
    except (HydraException, ValueError):
        return None
    names = {override.key_or_group: override.value() for override in given}
    for key in WEIGHTS:
        if names.get(key) != getattr(getattr(params, key), "name", None):
            return None
    rest = {"overrides", *WEIGHTS}
    if composed.model_dump(exclude=rest) != params.model_dump(exclude=rest):
        return None
    return " ".join(["dvc exp run", *(f"-S {shlex.quote(override)}" for override in params.overrides)])


def completed(compose: Compose, overrides: list[str]) -> DictConfig:
    """The composition of these overrides, completed and checked.

    For unlabelled data, entries that need labels are dropped. The hashes of the starting weights and the
    overrides themselves are added.

    Raises:
        ValueError: the parameters are wrong.
    """
    project = CONF.parents[1]
    if project in Path.cwd().parents:
        raise ValueError(f"this is a subfolder of the project: run `cd {project}` first")
    overrides = [_quoted(override) for override in overrides]
    try:
        composed = compose(overrides)
        _drop_what_needs_labels(composed)
        _add_hashes(composed)
        OmegaConf.update(composed, "overrides", overrides, force_add=True)
        config.check(_parameters(composed))
    except HydraException as error:
        raise ValueError(_explain(error, compose, overrides)) from None
    except OmegaConfBaseException as error:
        raise ValueError(str(error)) from None
    return composed


def _quoted(override: str) -> str:
    """The override, quoted if Hydra would refuse its text or would not read it as a string."""
    key, _, text = override.partition("=")
    if key not in NAMES or text in ("", "null") or text[0] in "\"'":
        return override
    try:
        parsed = OverridesParser.create().parse_override(override)
        if parsed.is_sweep_override() or isinstance(parsed.value(), str):
            return override
    except HydraException:
        pass
    escaped = text.replace("'", r"\'")
    return f"{key}='{escaped}'"


def _parameters(composed: DictConfig) -> dict[str, Any]:
    ours = [str(key) for key in composed if key != "hydra"]
    return OmegaConf.to_container(OmegaConf.masked_copy(composed, ours), resolve=True)  # type: ignore[return-value]


def _drop_what_needs_labels(composed: DictConfig) -> None:
    """Drop the evaluations, analyses and baselines that need labels if the data has none."""
    if OmegaConf.select(composed, "dataset.labels") != "none":
        return
    left_out = rules.needing_labels(_parameters(composed))
    with open_dict(composed):
        for group, name in left_out:
            del composed[group][name]
    if left_out:
        names = ", ".join(name for _, name in left_out)
        print(f"dataset.labels=none: left out {names}, which need labels", file=sys.stderr)


def _add_hashes(composed: DictConfig) -> None:
    """Record the hashes of `init` and `start_from` beside their names."""
    init, start_from = (OmegaConf.select(composed, key) for key in WEIGHTS)
    if init is not None:
        OmegaConf.update(composed, "init", weight_hashes.resolve_init(str(init)), force_add=True)
    if start_from is not None:
        resolved = weight_hashes.resolve_start(str(start_from), _parameters(composed))
        OmegaConf.update(composed, "start_from", resolved, force_add=True)


def _explain(error: HydraException, compose: Compose, overrides: list[str]) -> str:
    """One sentence about the override that Hydra refuses."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException as refused:
        return f"cannot read {refused.override!r}: expected group=choice or key=value"
    for override in parsed:
        if problem := _wrong_key(override, compose, parsed) or _wrong_choice(override):
            return problem
    return " ".join(str(error).split("Config search path")[0].split())


def _wrong_key(override: Override, compose: Compose, overrides: list[Override]) -> str | None:
    key = override.key_or_group
    if key in _groups() or override.is_add() or override.is_force_add():
        return None
    try:
        composed = compose([str(other.input_line) for other in overrides if other.key_or_group in _groups()])
    except HydraException:  # a choice is wrong too
        composed = compose([])
    return _unknown_part(key, {**dict.fromkeys(_groups()), **_parameters(composed)})


def _unknown_part(key: str, values: Any) -> str | None:
    """Names the first part of a dotted name that does not exist; None if all do."""
    path = ""
    for part in key.split("."):
        if not isinstance(values, dict):
            return f"{key} is not a parameter; {path} is {values!r}"
        path = f"{path}.{part}" if path else part
        if part not in values:
            return f"{path} is not a parameter{suggestion(part, list(values))}"
        values = values[part]
    return None


def _wrong_choice(override: Override) -> str | None:
    if override.is_sweep_override():
        return f"{override.input_line} has several values; `dvc exp run --queue -S` runs each of them"
    value, group = override.value(), override.key_or_group
    if group not in _groups():
        return None
    known = _choices(group)
    for choice in value if isinstance(value, list) else [value]:
        if choice is not None and str(choice) not in known:
            return f"{group}={choice} does not exist{suggestion(str(choice), known)}"
    return None


@functools.cache
def _groups() -> list[str]:
    """The groups that the defaults list of config.yaml chooses from."""
    defaults = config.read(CONF / "config.yaml")["defaults"]
    return [str(group) for entry in defaults if entry != "_self_" for group in entry]


def _choices(group: str) -> list[str]:
    root = CONF / group
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))
