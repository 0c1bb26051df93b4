"""Compose parameters from pipeline/conf: complete, checked, and with the overrides that they come from.

`dvc exp run -S` composes with Hydra, whose plugin in hydra_plugins/ calls `completed`. Everything
else calls `compose` or `write`. A wrong override raises ValueError with one sentence, and nothing is written.
DVC then exits with 255, and `python -m pipeline.compose` with 1, like every stage.
"""

import json
import os
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from cl import config
from cl.config import rules
from cl.runtime.registry import module_of
from pipeline.support import mistakes, weight_hashes
from pipeline.support.mistakes import CONF
from pipeline.support.typed_names import WEIGHTS, command, quoted

Compose = Callable[[list[str]], DictConfig]
TYPED = ("views", "backbone", "method", "optim")  # once typed, they have their own settings, not a recipe's
OPTIMIZER = (  # but an optimizer's batch, epochs and schedule are a recipe's
    *("kind", "momentum", "nesterov", "betas", "lars", "weight_decay", "final_weight_decay", "decay_1d"),
    *("base_lr", "scaling", "reference_batch", "lr_scale_1d"),
)


def _print(text: str) -> None:
    print(text, file=sys.stderr)


def compose(overrides: list[str], say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The parameters of `dvc exp run -S ...` with these overrides; `say` as in `completed`.

    Raises:
        ValueError: they are wrong.
    """
    with initialize_config_dir(str(CONF), version_base=None):
        load = GlobalHydra.instance().config_loader().load_configuration
        return _parameters(completed(lambda chosen: load("config", chosen, RunMode.RUN), overrides, say))


def write(file: Path, overrides: list[str]) -> None:
    """Write the composed parameters, byte for byte as DVC does; see `check_no_run`."""
    check_no_run(file.parent)
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(compose(overrides, _print))))


def check_no_run(folder: Path) -> None:
    """Check that no stage runs in the folder, before its `params.yaml` is written.

    DVC's file may name a process that was killed, or in a new container even this one or its parents.

    Raises:
        ValueError: a stage runs.
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


def command_for(params: config.Params) -> str | None:
    """The command that runs these parameters; None if their overrides compose to others.

    In that case params.yaml was edited by hand, or pipeline/conf has changed since it was composed.
    """
    try:
        given = OverridesParser.create().parse_overrides(params.overrides)
        others = [str(override.input_line) for override in given if override.key_or_group not in WEIGHTS]
        without = ["hand_over=trained"] if params.init else []  # `better` needs them
        composed = config.check(compose([*others, *without]))  # without weights: their files may be gone
    except (HydraException, ValueError):
        return None
    names = {override.key_or_group: override.value() for override in given}
    for key in WEIGHTS:
        if names.get(key) != getattr(getattr(params, key), "name", None):
            return None
    rest: dict[str, Any] = dict.fromkeys(("overrides", *WEIGHTS), True)
    if params.init:  # may determine these
        rest |= {"backbone": True, "dataset": {"mean", "std"}, "hand_over": True}
    if composed.model_dump(exclude=rest) != params.model_dump(exclude=rest):
        return None
    return command(params.overrides)


def completed(compose: Compose, overrides: list[str], say: Callable[[str], None] = _print) -> DictConfig:
    """The composition of these overrides, completed and checked; `say` is told what was dropped.

    A recipe's settings for what is not chosen are dropped; for unlabelled data, so are entries that need
    labels. The hashes of the starting weights and the overrides themselves are added.

    Raises:
        ValueError: the parameters are wrong.
    """
    project = CONF.parents[1]
    if project in Path.cwd().parents:
        raise ValueError(f"this is a subfolder of the project: run `cd {project}` first")
    overrides = [quoted(override) for override in overrides]
    try:
        mistakes.check_choices(overrides)
        composed = _composed(compose, overrides, say)
        _drop_what_is_not_chosen(composed, overrides)
        _drop_what_needs_labels(composed, say)
        _add_hashes(composed)
        _follow_init(composed, overrides, say)
        OmegaConf.update(composed, "overrides", overrides, force_add=True)
        config.check(_parameters(composed))
    except HydraException as error:
        explained = mistakes.explain(error, lambda chosen: _parameters(_composed(compose, chosen)), overrides)
        raise ValueError(explained) from None
    except OmegaConfBaseException as error:
        raise ValueError(str(error).splitlines()[0]) from None
    return composed


def _composed(
    compose: Compose, overrides: list[str], say: Callable[[str], None] = lambda text: None
) -> DictConfig:
    """The composition, where a typed group has its own settings, not those of a recipe or method for another.

    Of an optimizer, these are `OPTIMIZER`; `say` is told which settings were left out.
    """
    composed = compose(overrides)
    parsed = OverridesParser.create().parse_overrides(overrides)
    typed = {each.key_or_group: each.input_line for each in parsed if not each.is_delete()}
    for group in TYPED:
        if group not in typed or not {"recipe", "method"} & typed.keys() - {group}:
            continue
        own = compose([str(e.input_line) for e in parsed if e.key_or_group.split(".")[0] == group])[group]
        before = _plain(composed[group])
        if group == "optim":
            own = {**composed.optim, **{key: own[key] for key in OPTIMIZER}}
        composed[group] = own
        after = _plain(composed[group])
        if left_out := [f"{group}.{key}" for key in sorted(before) if before[key] != after.get(key)]:
            say(f"{typed[group]}: left out settings for another choice: {', '.join(left_out)}")
    return composed


def _parameters(composed: DictConfig) -> dict[str, Any]:
    ours = [key for key in composed if key != "hydra"]
    return {str(key): _plain(composed[key]) for key in ours}  # a masked copy takes a tenth of the time


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _drop_what_is_not_chosen(composed: DictConfig, overrides: list[str]) -> None:
    """Drop a recipe's settings for evaluations, transfers, analyses and baselines that are not chosen.

    Raises:
        ValueError: an override, not a recipe, sets one of them or replaces all.
    """
    typed = _typed(overrides)
    for group in mistakes.ENTRIES:
        entries = composed.get(group)
        if not isinstance(entries, DictConfig):
            raise ValueError(mistakes.misplaced(group, entries))
        chosen = [str(name) for name in entries if _is_chosen(entries[name])]
        for name in [str(name) for name in entries if name not in chosen]:
            if any(f"{key}.".startswith(f"{group}.{name}.") for key in typed):
                raise ValueError(mistakes.not_chosen(group, name, chosen))
            with open_dict(entries):
                del entries[name]
    for name, baseline in composed.baselines.items():
        for group in ("evaluations", "transfers"):
            names = baseline[group]
            if not isinstance(names, str) and f"baselines.{name}.{group}" not in typed:
                baseline[group] = [each for each in names if each in composed[group]]


def _typed(overrides: list[str]) -> list[str]:
    """The parameters and groups that the overrides set."""
    return [each.key_or_group for each in OverridesParser.create().parse_overrides(overrides)]


def _is_chosen(entry: DictConfig) -> bool:
    """Whether the entry has what only its own file sets: its kind, or how a baseline is trained."""
    return "kind" in entry or ("training" in entry and (entry.training is None or "views" in entry.training))


def _drop_what_needs_labels(composed: DictConfig, say: Callable[[str], None]) -> None:
    """Drop the evaluations, analyses and baselines that need labels if the data has none."""
    if OmegaConf.select(composed, "dataset.labels") != "none":
        return
    left_out = rules.needing_labels(_parameters(composed))
    with open_dict(composed):
        for group, name in left_out:
            del composed[group][name]
    if left_out:
        names = ", ".join(name for _, name in left_out)
        say(f"dataset.labels=none: left out what needs labels: {names}")


def _follow_init(composed: DictConfig, overrides: list[str], say: Callable[[str], None]) -> None:
    """Take the backbone and the normalisation that belong to the weights of `init`, unless they are typed.

    Say if the normalisation is another than the recorded one, or if none is recorded.
    """
    if (name := OmegaConf.select(composed, "init.name")) is None:
        return
    typed = _typed(overrides)
    found = weight_hashes.described(str(name))
    if not any(key.partition(".")[0] == "backbone" for key in typed):
        if module_of("networks.backbones", found["backbone"]["kind"]).Config.model_fields.keys() >= {"size"}:
            found["backbone"]["size"] = composed.dataset.crop
        composed.backbone = found["backbone"]
    for key in ("mean", "std"):
        recorded, used = found["dataset"].get(key), list(composed.dataset[key])
        if recorded and f"dataset.{key}" not in typed:
            composed.dataset[key] = recorded
        elif recorded != used:
            known = f"was trained with dataset.{key}={recorded}" if recorded else f"records no dataset.{key}"
            say(f"init={name} {known}; this run uses {used}")


def _add_hashes(composed: DictConfig) -> None:
    """Record the hashes of `init` and `start_from` beside their names."""
    init, start_from = (OmegaConf.select(composed, key) for key in WEIGHTS)
    if init is not None:
        OmegaConf.update(composed, "init", weight_hashes.resolve_init(str(init)), force_add=True)
    if start_from is not None:
        resolved = weight_hashes.resolve_start(str(start_from), _parameters(composed))
        OmegaConf.update(composed, "start_from", resolved, force_add=True)
