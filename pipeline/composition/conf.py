"""The files of pipeline/conf: the groups, and what each can choose; and the overrides that choose."""

import functools
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
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
WEIGHTS = ("init", "start_from")
# Parameters that accept any text, such as ~/Vögel (1), which Hydra's grammar would refuse or misread.
NAMES = ("dataset.name", "dataset.table", "dataset.store", *WEIGHTS, "teacher")


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


def parse(texts: Iterable[str]) -> list[Override]:
    """The overrides; `input_line` of each is its text. ValueError if one cannot be read."""
    return [_parse(text) for text in texts]


def _parse(text: str) -> Override:
    parse = OverridesParser.create().parse_override
    key, _, name = text.partition("=")
    try:
        override = parse(text)
        if key not in NAMES or name in ("", "null") or override.is_sweep_override() or name[0] in "\"'":
            return override
    except HydraException:
        if key not in NAMES:
            meant = "".join(f"; did you mean {name}?" for name in get_close_matches(key, NAMES, 1))
            raise ValueError(f"cannot read {text!r}: expected group=choice or key=value{meant}") from None
    override = parse(f"{key}={QuotedString(name, Quote.single).with_quotes()}")
    override.input_line = text
    return override
