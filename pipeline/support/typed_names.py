"""Takes names as typed, as in `dvc exp run -S dataset.name=~/Vögel (1)`, which Hydra's grammar refuses.

DVC parses overrides before it loads plugins of Hydra. So pipeline/support/importable.sh has Python call
`quote_for_dvc` when DVC starts.
"""

import shlex
import sys

WEIGHTS = ("init", "start_from")
NAMES = ("dataset.name", "dataset.table", "dataset.store", *WEIGHTS)  # parameters that accept any text
OPTIONS = ("-S", "--set-param=")  # which may precede an override without a space


def quote_for_dvc() -> None:
    """Quote the names among the arguments of `dvc exp run`."""
    if "run" in sys.argv:
        sys.argv = [_quoted_argument(argument) for argument in sys.argv]


def _quoted_argument(argument: str) -> str:
    option = next((option for option in OPTIONS if argument.startswith(option)), "")
    return option + quoted(argument.removeprefix(option))


def quoted(override: str) -> str:
    """The override, quoted if Hydra would refuse its text or would not read it as a string."""
    key, _, text = override.partition("=")
    if key not in NAMES or text in ("", "null") or text[0] in "\"'":
        return override
    from hydra.core.override_parser.overrides_parser import OverridesParser  # slow to import
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(override)
        if parsed.is_sweep_override() or isinstance(parsed.value(), str):
            return override
    except HydraException:
        pass
    escaped = text.replace("'", r"\'")
    return f"{key}='{escaped}'"


def command(overrides: list[str], *options: str) -> str:
    """The `dvc exp run` with these overrides, ready to paste into a shell; names are as typed."""
    typed = (shlex.quote(_as_typed(override)) for override in overrides)
    return " ".join(["dvc exp run", *options, *(f"-S {override}" for override in typed)])


def _as_typed(override: str) -> str:
    key, _, text = override.partition("=")
    typed = f"{key}={text[1:-1]}".replace(r"\'", "'")
    return typed if quoted(typed) == override else override
