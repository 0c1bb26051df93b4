"""The `dvc exp run -S ...` that composes to given parameters: chosen files, then single changed values."""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from cl.config import read, rules
from cl.report.page import Origin
from pipeline.compose import CONF

FILES = ("method", "loss", "dataset", "views", "patches", "backbone", "optim")  # groups that choose one file
LISTS = {
    "evaluation": "evaluations",
    "transfer": "transfers",
    "analysis": "analyses",
    "baseline": "baselines",
}
WEIGHTS = ("init", "start_from")  # composing them would look for their files


def origin(params: dict[str, Any]) -> Origin:
    """The nearest method, and the command that runs the parameters: a recipe, files, single values."""
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    with initialize_config_dir(str(CONF), version_base=None):
        try:
            return _find(params, _flat(params))
        except HydraException:  # for example, a recipe that no longer exists
            return Origin(params["method"]["kind"], [], None)


def _find(params: dict[str, Any], wanted: dict[str, Any]) -> Origin:
    chosen = [f"recipe={params['recipe']}"] if params["recipe"] else []
    composed, choices = _compose(chosen)
    for group in FILES:
        if not _changes(composed[group], _flat(params[group])):
            continue
        kind = params[group].get("kind")
        fitting = [name for name in _files(group) if _kind(group, name) == kind]
        found = {name: _compose([*chosen, f"{group}={name}"])[0] for name in fitting}
        distances = {name: len(_changes(values, wanted)) for name, values in found.items()}
        best = min(distances, key=lambda name: distances[name], default=None)
        if best and distances[best] + 1 <= len(_changes(composed, wanted)):
            chosen.append(f"{group}={best}")
            composed, choices[group] = found[best], best
    for group, key in LISTS.items():
        if set(composed[key]) != set(params[key]):
            names = [name for name in params[key] if name in _files(group)]
            chosen.append(f"{group}=[{','.join(names)}]")
    composed, _ = _compose(chosen)
    changes = _changes(composed, wanted)
    of_method = [change.split(".", 1)[1] for change in changes if change.startswith("method.")]
    overrides = [*chosen, *changes]
    if _changes(_compose(overrides)[0], wanted):
        return Origin(choices["method"], of_method, None)
    overrides += [f"{key}={_text(params[key]['name'])}" for key in WEIGHTS if params[key]]
    command = " ".join(["dvc exp run", *(f"-S {shlex.quote(override)}" for override in overrides)])
    return Origin(choices["method"], of_method, command)


def _compose(overrides: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The parameters, and the file chosen in each group; unchecked, as single files need not fit together."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    loader = GlobalHydra.instance().config_loader()
    composed = loader.load_configuration("config", overrides, RunMode.RUN)
    choices = dict(composed.hydra.runtime.choices)
    ours = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    values: Any = OmegaConf.to_container(ours, resolve=True)
    if values["dataset"]["labels"] == "none":
        for group, name in rules.needing_labels(values):
            del values[group][name]
    return values, choices


def _files(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _kind(group: str, name: str) -> str | None:
    """The kind in a file, or in those that it extends; None for a group without kinds."""
    values = read(CONF / group / f"{name}.yaml")
    bases = [entry for entry in values.get("defaults", []) if isinstance(entry, str) and entry != "_self_"]
    kinds = [values.get(group, values).get("kind"), *(_kind(group, base) for base in bases)]
    return next((kind for kind in kinds if kind), None)


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted path, without weights to start from; an empty mapping is a value."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if prefix or key not in WEIGHTS:
            flat |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return flat


def _changes(composed: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The overrides that turn composed parameters into those wanted; a missing key is as good as null."""
    return list(_overrides(_flat(composed), wanted))


def _overrides(found: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    for key, value in wanted.items():
        if key not in found and value is not None:
            yield f"+{key}={_text(value)}"
        elif found.get(key) != value:
            yield f"{key}={_text(value)}"
    yield from (f"~{key}" for key in found if key not in wanted)


def _text(value: Any) -> str:
    """A value in Hydra's grammar of overrides."""
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_/][\w./:-]*", value, re.ASCII):
        return json.dumps(value) if value.lower() in ("null", "true", "false", "nan", "inf") else value
    return json.dumps(value, ensure_ascii=False)
