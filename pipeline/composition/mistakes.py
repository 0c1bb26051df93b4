"""What is wrong with overrides, and what to type instead."""

import difflib

from hydra.core.override_parser.types import Override

from cl.runtime.base_config import near, one_of, suggestion
from pipeline.composition.conf import ENTRIES, Values, choices, choices_with, groups, names
from pipeline.support.provenance import command

SHOWN = 4  # names that are suggested


def not_chosen(group: str, name: str, chosen: list[str]) -> str:
    """The sentence about a parameter of an entry that the experiment does not have."""
    chooser = ENTRIES[group]
    if name in choices(chooser):
        return f"{group}.{name} is not chosen; choose {chooser}=[{','.join([*chosen, name])}]"
    return f"{group}.{name} is not a parameter{suggestion(name, chosen or choices(chooser))}"


def check_choice(override: Override, given: list[Override]) -> None:
    """Raises ValueError for a choice that does not exist, and for several where one is possible."""
    if override.is_sweep_override():
        run = command(_texts(given), "--queue")
        raise ValueError(f"{override.input_line} has several values; `{run}` queues a run for each of them")
    value = override.value()
    group, _, key = override.key_or_group.partition(".")
    if group not in groups() or key not in ("", "kind"):
        return
    known, several = choices(group), group in ENTRIES.values()
    if key:
        choice = str(value) if str(value) in known else one_of(near(str(value), known) or ["..."])
        raise ValueError(f"{override.input_line}: the kind follows from the choice; choose {group}={choice}")
    if override.is_delete():
        if several:
            raise ValueError(f"{override.input_line} is not possible: choose {group}=[]")
        return
    if value is None:
        instead = f", or choose {group}=[]" if several else ""
        raise ValueError(f"{group}=null chooses nothing: leave it out{instead}")
    if isinstance(value, list) and len(value) > 1 and not several:
        each = f"{group}={','.join(map(str, value))}"
        run = command([each if text == override.input_line else text for text in _texts(given)], "--queue")
        raise ValueError(f"{override.input_line}: choose one; `{run}` queues a run for each")
    for choice in map(str, value if isinstance(value, list) else [value]):
        if choice not in known:
            inside = [each for each in known if each.startswith(f"{choice.split('/')[0]}/")]
            wrong = f"{group}={choice} does not exist"
            wrong += suggestion(choice, inside or known, f"pipeline/conf/{group}")
            if group == "dataset" and not near(choice, known):
                others = [each for each in given if each.key_or_group not in ("dataset", "recipe")]
                run = command(["recipe=own/small", f"dataset.name={choice}", *_texts(others)])
                wrong += f". For a folder of your own images, run `{run}`"
            raise ValueError(wrong)


def check_key(override: Override, given: list[Override], values: Values) -> None:
    """Raises ValueError for a parameter that is not among `values`, which the choices give."""
    key = override.key_or_group
    if key in ENTRIES:
        value = override.value()
        listed = value if isinstance(value, list) else [] if value is None else [value]
        chosen = f"{ENTRIES[key]}=[{','.join(map(str, listed))}]"
        raise ValueError(f"{key} holds the parameters of each; choose them with {chosen}")
    if key in groups() or override.is_add() or override.is_force_add():
        return
    parent, siblings = "", {**dict.fromkeys(groups()), **values}
    for part in key.split("."):
        if not isinstance(siblings, dict):
            raise ValueError(f"{key} is not a parameter; {parent} is {siblings!r}")
        if part not in siblings:
            raise ValueError(_unknown(key, parent, siblings, values, given))
        parent, siblings = f"{parent}.{part}".lstrip("."), siblings[part]


def _unknown(key: str, parent: str, siblings: Values, values: Values, given: list[Override]) -> str:
    """The sentence about a name that begins with the parameter `parent` and goes on with an unknown part."""
    rest = key.removeprefix(parent).lstrip(".")
    part = rest.split(".")[0]
    if longer := _longer_names(parent, rest, values):
        return f"{key} is not a parameter; did you mean {one_of(longer)}?"
    if parent in ENTRIES:
        return not_chosen(parent, part, list(siblings))
    if "kind" in values.get(key.split(".")[0], {}) and (others := choices_with(key)):
        return _of_other_choices(key, others, values, given)
    return f"{f'{parent}.{part}'.lstrip('.')} is not a parameter{suggestion(part, list(siblings))}"


def _longer_names(parent: str, rest: str, values: Values) -> list[str]:
    """The parameters below `parent` whose name ends with `rest`; else those whose last part resembles it."""
    below = [name for name in names(values) if not parent or name.startswith(f"{parent}.")]
    found = [name for name in below if name.endswith(f".{rest}")]
    of_datasets = [f"dataset.{rest}"] if not parent and choices_with(f"dataset.{rest}") else []
    if not (found or of_datasets or parent or near(rest, list(values) + groups())):
        last = {name: name.split(".")[-1] for name in below}
        alike = difflib.get_close_matches(rest, last.values(), n=1, cutoff=0.8)
        found = [name for name in below if last[name] in alike or last[name].endswith(f"_{rest}")]
    depth = min((name.count(".") for name in found), default=0)
    least_deep = [name for name in found if name.count(".") == depth][:SHOWN]
    return list(dict.fromkeys([*of_datasets, *least_deep]))


def _of_other_choices(key: str, others: list[str], values: Values, given: list[Override]) -> str:
    """The sentence about a parameter that only other choices of its group have."""
    group = key.split(".")[0]
    typed = {override.key_or_group for override in given}
    if "dataset.name" in typed and group == "dataset" and not {"recipe", "dataset"} & typed:
        fitting = set.intersection(*({*choices_with(each)} for each in typed if each.startswith("dataset.")))
        choice = [] if not fitting or "unlabelled" in fitting else [f"dataset={min(fitting)}"]
        run = command(["recipe=own/small", *choice, *_texts(given)])
        return f"{key} belongs to data sets of your own: run `{run}`, or choose dataset={one_of(others)}"
    current = f"{group}.kind={values[group]['kind']}"
    return f"{key} is not a parameter of {current}; choose {group}={one_of(others[:SHOWN])}"


def _texts(overrides: list[Override]) -> list[str]:
    return [str(override.input_line) for override in overrides]
