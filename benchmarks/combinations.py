"""Every method with every loss, with and without small crops and patches."""

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from cl import config
from cl.runtime.registry import kinds, module_of
from pipeline.composition.compose import compose
from pipeline.composition.conf import CONF, choices, written

VIEWS = {"two views": "small", "multi-crop": "small_multicrop"}
PATCHES = {"whole": "whole", "patches": "fast"}
PUBLISHED = ("_imagenet", "_cifar")  # how the names of methods at their published size end


class Cell(NamedTuple):
    """One combination, by the names of its files; `refusal` is empty where it runs."""

    method: str
    loss: str
    views: str
    patches: str
    values: dict[str, Any]
    refusal: str


def methods() -> list[str]:
    """The methods at the size of the embedded data, without those at their published size."""
    return [name for name in choices("method") if not name.endswith(PUBLISHED)]


def cells(method: str) -> Iterator[Cell]:
    """The method with every loss, kind of views and kind of patches."""
    for names in itertools.product(kinds("losses"), VIEWS, PATCHES):
        yield cell(method, *names)


@cache
def cell(method: str, loss: str, views: str, patches: str) -> Cell:
    """A combination, checked as the parameters of an experiment are."""
    values = composed(f"method={method}")
    combined = values | {
        "loss": written("loss", loss),
        "views": _enough_views(_views(views, values["views"]), values["method"]),
        "patches": config.read(CONF / "patches" / f"{PATCHES[patches]}.yaml"),
    }
    return Cell(method, loss, views, patches, combined, _refusal(combined))


@cache
def composed(choice: str) -> dict[str, Any]:
    """The default experiment with one other choice."""
    return compose([choice])


def _views(kind: str, of_method: dict[str, Any]) -> dict[str, Any]:
    """Views of a kind; a method that brings its own keeps them unless small crops are asked for."""
    default = composed(f"views={VIEWS['two views']}")["views"]
    own = kind == "two views" and of_method != default
    return of_method if own else composed(f"views={VIEWS[kind]}")["views"]


def _enough_views(views: dict[str, Any], method: dict[str, Any]) -> dict[str, Any]:
    """The views, with a third large one if that gives a query a second positive (JCL's keys)."""
    several = module_of("methods", method["kind"]).Config.model_validate(method).positives(3) > 1
    return views | {"random": views["random"] | {"count": 3}} if several else views


def _refusal(values: dict[str, Any]) -> str:
    try:
        config.check(values)
    except ValueError as error:
        return str(error)
    return ""
