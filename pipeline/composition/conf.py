"""The files of pipeline/conf: the groups, and what each can choose."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from cl import config

CONF = Path(__file__).parents[1] / "conf"
ENTRIES = {  # groups that choose several entries, by the parameter that holds the entries
    "evaluations": "evaluation",
    "transfers": "transfer",
    "analyses": "analysis",
    "baselines": "baseline",
}
Values = dict[str, Any]


@functools.cache
def groups() -> list[str]:
    """The groups that the defaults list of config.yaml chooses from."""
    defaults = config.read(CONF / "config.yaml")["defaults"]
    return [str(group) for entry in defaults if entry != "_self_" for group in entry]


def choices(group: str) -> list[str]:
    """The files that a group can choose."""
    root = CONF / group
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def choices_with(key: str) -> list[str]:
    """The choices of the group that have this parameter."""
    group, _, name = key.partition(".")
    if group not in groups():
        return []
    return [choice for choice in choices(group) if {key, name} & {*names(written(group, choice))}]


def written(group: str, choice: str) -> Values:
    """What the choice's file and the files of its group that it builds on contain."""
    values: Any = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{choice}.yaml"))
    for base in (values or {}).pop("defaults", []):
        if isinstance(base, str) and base in choices(group):
            values = {**written(group, base), **values}
    return values or {}


def names(values: Values, parent: str = "") -> Iterator[str]:
    """The dotted names of all parameters and of the groups that they are in."""
    for key, value in values.items():
        yield f"{parent}{key}"
        if isinstance(value, dict):
            yield from names(value, f"{parent}{key}.")
