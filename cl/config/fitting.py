"""Fits parameters to few images of your own."""

import math
from collections.abc import Iterator
from typing import Any

from cl.config import rules
from cl.config.params import Baseline, Params, SupervisedTraining
from cl.data.order import reduced
from cl.data.reader import Reader
from cl.sources import OwnImages


def for_few_images(params: Params, train: Reader, val: Reader) -> tuple[Params, dict[str, str]]:
    """The parameters, fitted to these images where they are few; and what changed, by name: "128 to 8".

    Published data sets have the size that their recipes expect; there, too few images are a mistake, which
    `rules.check_data` reports.
    """
    if not isinstance(params.dataset, OwnImages):
        return params, {}
    batch_size = reduced(params.optim.batch_size, len(train))
    needed = math.ceil((params.optim.least_steps or 0) / max(1, len(train) // batch_size))
    optim: dict[str, Any] = {
        "batch_size": batch_size,
        "epochs": max(params.optim.epochs, needed),
        "monitor": params.optim.monitor.for_few_images(train),
    }
    group = params.bn_group
    if group != "global" and optim["batch_size"] != params.optim.batch_size:
        group = min(group, max(2, optim["batch_size"] // 2))  # batch-norm groups need a second group
    fewer = params.model_copy(
        update={
            "bn_group": group,
            "optim": params.optim.model_copy(update=optim),
            "evaluations": _entries(params.evaluations, train, val),
            "analyses": _entries(params.analyses, train, val),
            "baselines": {name: _baseline(b, len(train.labelled)) for name, b in params.baselines.items()},
        }
    )
    changes = dict(_changes(params.model_dump(), fewer.model_dump()))
    try:
        rules.check(fewer)
    except ValueError as error:
        size = changes.get("optim.batch_size", "unchanged")
        raise ValueError(f"for {len(train)} training images, optim.batch_size {size}: {error}") from None
    return fewer, changes


def _entries(entries: dict[str, Any], train: Reader, val: Reader) -> dict[str, Any]:
    return {name: entry.for_few_images(train, val) for name, entry in entries.items()}


def _baseline(baseline: Baseline, labelled: int) -> Baseline:
    if not isinstance(baseline.training, SupervisedTraining):
        return baseline
    optim = baseline.training.optim
    optim = optim.model_copy(update={"batch_size": reduced(optim.batch_size, labelled)})
    return baseline.model_copy(update={"training": baseline.training.model_copy(update={"optim": optim})})


def _changes(before: Any, after: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Each value that differs: its name with dots, and "old to new"."""
    if isinstance(before, dict):
        for key, value in before.items():
            yield from _changes(value, after[key], f"{place}.{key}" if place else key)
    elif before != after:
        old, new = (f"{value:.3g}" if isinstance(value, float) else f"{value}" for value in (before, after))
        yield place, f"{old} to {new}"
