"""Overrides such as `loss=dclw`, parsed; and names as typed, such as `dataset.name=~/Vögel (1)`.

Hydra's grammar would refuse such a name, or read another one.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

WEIGHTS = ("init", "start_from")
# Parameters that accept any text.
NAMES = ("dataset.name", "dataset.table", "dataset.store", *WEIGHTS, "teacher")


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
