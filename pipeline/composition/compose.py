"""The parameters that overrides give: complete, checked, and with the overrides themselves.

`dvc exp run` (dvc_program.py) and `python -m pipeline.compose` call `write`. A wrong override raises
ValueError with one sentence, and nothing is written.
"""

import json
import os
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import hydra
import psutil
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cl import config
from cl.config.rules.data import lacking
from pipeline.composition import mistakes, weight_hashes
from pipeline.composition.conf import CONF, ENTRIES, Values, groups
from pipeline.composition.overrides import WEIGHTS, parse
from pipeline.support.provenance import command

TYPED = ("views", "backbone", "method", "optim")  # once typed, they have their own settings, not a recipe's
OPTIMIZER = (  # but an optimizer's batch, epochs and schedule are a recipe's
    *("kind", "momentum", "nesterov", "betas", "lars", "weight_decay", "final_weight_decay", "decay_1d"),
    *("base_lr", "scaling", "reference_batch", "lr_scale_1d"),
)
Say = Callable[[str], None]


def write(file: str | Path, overrides: list[str]) -> None:
    """Write the composed parameters, and what was dropped to stderr; see `check_no_run` and `compose`."""
    file = Path(file)
    check_no_run(file.parent)
    composed = compose(overrides, lambda text: print(text, file=sys.stderr))
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(composed)))


def check_no_run(folder: Path) -> None:
    """Raises ValueError if a stage runs in the folder, before its `params.yaml` is written.

    DVC's file may name a process that was killed, or in a new container even this one or its parents.
    """
    try:
        held = json.loads((folder / ".dvc/tmp/rwlock").read_text())
    except (FileNotFoundError, json.JSONDecodeError):  # DVC will explain a damaged file
        return
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in [*held.get("write", {}).values(), *chain.from_iterable(held.get("read", {}).values())]:
        if process["pid"] not in own and psutil.pid_exists(process["pid"]):
            raise ValueError(
                f"`{process['cmd']}` (process {process['pid']}) is running in this folder: wait until it has "
                "finished, or use another clone"
            )


def compose(overrides: list[str], say: Say = lambda text: None) -> Values:
    """The parameters of `dvc exp run -S ...` with these overrides; `say` is told what was dropped.

    A recipe's settings for what is not chosen are dropped; so is what needs labels or columns that the data
    lacks. The hashes of the starting weights and the overrides themselves are added.
    """
    project = CONF.parents[1]
    if project in Path.cwd().parents:
        raise ValueError(f"this is a subfolder of the project: run `cd {project}` first")
    given, notes = parse(overrides), list[str]()
    for each in given:
        mistakes.check_choice(each, given)
    try:
        composed = _choose(given, notes.append)
        values = _plain(composed)
        for each in given:
            mistakes.check_key(each, given, values)
        _set(composed, given)
        _drop_what_is_not_chosen(composed, given)
        _drop_what_the_data_lacks(composed, given, notes.append)
        _add_weights(composed, given, notes.append)
        values = _plain(composed) | {"overrides": overrides}
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    config.check(values)
    for note in notes:
        say(note)
    return values


def command_for(params: config.Params) -> str | None:
    """The command that runs these parameters; None if their overrides compose to others.

    In that case params.yaml was edited by hand, or pipeline/conf has changed since it was composed.
    """
    try:
        given = parse(params.overrides)
        names = {override.key_or_group: override.value() for override in given}
        weights = (*WEIGHTS, "teacher") if "teacher" in names else WEIGHTS
        others = [str(each.input_line) for each in given if each.key_or_group not in weights]
        without = ["hand_over=trained"] if params.init else []  # `better` needs them
        composed = config.check(compose([*others, *without]))  # without weights: their files may be gone
    except ValueError:
        return None
    if any(names.get(key) != getattr(getattr(params, key), "name", None) for key in weights):
        return None
    rest: dict[str, Any] = dict.fromkeys(("overrides", *weights), True)
    rest["baselines"] = {name: {"hash"} for name in params.baselines}
    if "teacher" in names:  # determines this
        rest |= {"method": {"projector": {"out"}}}
    if params.init:  # may determine these
        rest |= {"backbone": True, "dataset": {"mean", "std"}, "hand_over": True}
        rest["baselines"]["published"] = {"weights", "hash"}
    if composed.model_dump(exclude=rest) != params.model_dump(exclude=rest):
        return None
    return command(params.overrides)


def _load(choices: list[Override]) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        composed = hydra.compose("config", [str(choice.input_line) for choice in choices])
    OmegaConf.set_struct(composed, False)
    return composed


def _choose(given: list[Override], say: Say) -> DictConfig:
    """The chosen files. A typed group has its own settings, not those of a recipe or method for another.

    Of an optimizer, these are `OPTIMIZER`; `say` is told which settings were left out.
    """
    choices = [each for each in given if each.key_or_group in groups()]
    composed = _load(choices)
    typed = {choice.key_or_group: choice for choice in choices if not choice.is_delete()}
    for group in TYPED:
        if group not in typed or not {"recipe", "method"} & typed.keys() - {group}:
            continue
        own = _load([typed[group]])[group]
        before = _plain(composed[group])
        if group == "optim":
            own = {**composed.optim, **{key: own[key] for key in OPTIMIZER}}
        composed[group] = own
        after = _plain(composed[group])
        if left_out := [f"{group}.{key}" for key in sorted(before) if before[key] != after.get(key)]:
            say(f"{typed[group].input_line}: left out settings for another choice: {', '.join(left_out)}")
    return composed


def _set(composed: DictConfig, given: list[Override]) -> None:
    """Set and remove the single parameters that are typed."""
    for override in given:
        parent, _, key = override.key_or_group.rpartition(".")
        if override.key_or_group in groups():
            continue
        if override.is_delete():
            del (OmegaConf.select(composed, parent) if parent else composed)[key]
        else:
            OmegaConf.update(composed, override.key_or_group, override.value())


def _plain(composed: DictConfig) -> Values:
    values: Any = OmegaConf.to_container(composed, resolve=True)
    return values


def _drop_what_is_not_chosen(composed: DictConfig, given: list[Override]) -> None:
    """Drop a recipe's settings for entries that are not chosen; ValueError if an override sets one."""
    typed = {each.key_or_group for each in given}
    for group in ENTRIES:
        entries = composed[group]
        chosen = [str(name) for name in entries if _is_chosen(entries[name])]
        for name in [str(name) for name in entries if name not in chosen]:
            if any(f"{key}.".startswith(f"{group}.{name}.") for key in typed):
                raise ValueError(mistakes.not_chosen(group, name, chosen))
            del entries[name]
    for name, baseline in composed.baselines.items():
        for group in ("evaluations", "transfers"):
            names = baseline[group]
            if not isinstance(names, str) and f"baselines.{name}.{group}" not in typed:
                baseline[group] = [each for each in names if each in composed[group]]


def _is_chosen(entry: Any) -> bool:
    """Whether the entry has what only its own file sets: its kind, or how a baseline is trained."""
    if not isinstance(entry, DictConfig):
        return False
    training = entry.get("training", False)
    is_trained = isinstance(training, DictConfig) and "views" in training
    return "kind" in entry or training in (None, "teacher") or is_trained


def _drop_what_the_data_lacks(composed: DictConfig, given: list[Override], say: Say) -> None:
    """Drop the evaluations and baselines that need labels or columns of values if the data has none."""
    without_labels = []
    for group, name, what in list(lacking(_plain(composed))):
        del composed[group][name]
        if what == "labels":
            without_labels.append(name)
        elif "evaluation" in {each.key_or_group for each in given}:
            say(f"left out {name}: choose dataset.positive or dataset.within for it")
    if without_labels:
        say(f"dataset.labels=none: left out what needs labels: {', '.join(without_labels)}")


def _add_weights(composed: DictConfig, given: list[Override], say: Say) -> None:
    """Record the hashes of `init`, `start_from` and `teacher` beside their names.

    The projector gets the width of the teacher's features. The backbone and the normalisation of `init` are
    taken, unless they are typed. Say if the normalisation is another than the recorded one, or if none is
    recorded.
    """
    init, start_from = (composed.get(key) for key in WEIGHTS)
    if teacher := composed.get("teacher"):
        digest, width = weight_hashes.of_teacher(str(teacher))
        composed.teacher = {"name": str(teacher), "hash": digest}
        if composed.method.kind == "distill":
            composed.method.projector.out = width
    if start_from is not None:
        composed.start_from = weight_hashes.of_start_from(str(start_from), _plain(composed))
    exact = composed.hand_over == "better"  # which may hand over `init` itself
    digest, found = ("", {}) if init is None else weight_hashes.of_init(str(init), exact=exact)
    for baseline in composed.baselines.values():
        if weights := baseline.get("weights"):
            baseline.weights = str(init) if digest.startswith("sha256:") else weights  # not an experiment
            if file_hash := weight_hashes.of_file(baseline.weights):
                baseline.hash = file_hash
    if init is None:
        return
    composed.init = {"name": str(init), "hash": digest}
    typed = {each.key_or_group for each in given}
    if not any(key.partition(".")[0] == "backbone" for key in typed):
        if "size" in found["backbone"]:
            found["backbone"]["size"] = composed.dataset.crop
        composed.backbone = found["backbone"]
    for key in ("mean", "std"):
        recorded, used = found["dataset"].get(key), list(composed.dataset[key])
        if recorded and f"dataset.{key}" not in typed:
            composed.dataset[key] = recorded
        elif recorded != used:
            known = f"was trained with dataset.{key}={recorded}" if recorded else f"records no dataset.{key}"
            say(f"init={init} {known}; this run uses {used}")
