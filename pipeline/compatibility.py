"""What can be combined: every method with every loss, with and without small crops and patches.

`python -m pipeline.compatibility simclr` answers for a method or a loss. Without a name, a table shows all
combinations, and the reasons why some are refused.
"""

import itertools
import textwrap
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, NamedTuple

import click

from cl import config
from cl.config.rules.methods import NEEDED, TERMS
from cl.runtime.base_config import suggestion
from cl.runtime.registry import module_of
from pipeline.composition.compose import compose
from pipeline.composition.conf import CONF, choices, written
from pipeline.support import command

VIEWS = {"two views": "small", "multi-crop": "small_multicrop"}
PUBLISHED = ("_imagenet", "_cifar")  # how the names of methods at their published size end
PATCHES = {"whole": "whole", "patches": "fast"}


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
    names = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
    return [name for name in names if not name.endswith(PUBLISHED)]


def losses() -> dict[str, str]:
    """The configuration file of each kind of loss: its own, or the first that names it."""
    files: dict[str, str] = {}
    for path in sorted((CONF / "loss").glob("*.yaml")):
        kind = config.read(path).get("kind")  # a file without one builds on another
        if kind and (path.stem == kind or kind not in files):
            files[kind] = path.stem
    return files


def cells(method: str) -> Iterator[Cell]:
    """The method with every loss, kind of views and kind of patches."""
    for names in itertools.product(losses().values(), VIEWS, PATCHES):
        yield cell(method, *names)


@cache
def cell(method: str, loss: str, views: str, patches: str) -> Cell:
    """A combination, checked as the parameters of an experiment are."""
    values = shipped(method)
    combined = values | {
        "loss": written("loss", loss),
        "views": _enough_views(_views(views, values["views"]), values["method"]),
        "patches": config.read(CONF / "patches" / f"{PATCHES[patches]}.yaml"),
    }
    return Cell(method, loss, views, patches, combined, _refusal(combined))


def shipped(method: str) -> dict[str, Any]:
    """The default experiment with a method."""
    return _composed(f"method={method}")


@cache
def _composed(choice: str) -> dict[str, Any]:
    return compose([choice])


def _views(kind: str, of_method: dict[str, Any]) -> dict[str, Any]:
    """Views of a kind; a method that brings its own keeps them unless small crops are asked for."""
    default = _composed(f"views={VIEWS['two views']}")["views"]
    own = kind == "two views" and of_method != default
    return of_method if own else _composed(f"views={VIEWS[kind]}")["views"]


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


def table(found: list[Cell]) -> str:
    """Markdown: a row for each method, a column for each loss, and below them the reasons for refusals."""
    by_pair: dict[tuple[str, str], list[Cell]] = {}
    for cell in found:
        by_pair.setdefault((cell.method, cell.loss), []).append(cell)
    columns = list(dict.fromkeys(cell.loss for cell in found))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for method in dict.fromkeys(cell.method for cell in found):
        texts = [_text(by_pair[method, loss]) for loss in columns]
        lines.append(f"| {method} | " + " | ".join(texts) + " |")
    sentences = dict.fromkeys(cell.refusal for cell in found if cell.refusal)
    return "\n".join([*lines, "", *(f"- {sentence}" for sentence in sentences)])


def _text(options: list[Cell]) -> str:
    """Whether the plain combination runs, and with which options it does not."""
    plain, *others = options
    if plain.refusal:
        return "refused"
    refused = [cell.patches if cell.patches != "whole" else cell.views for cell in others if cell.refusal]
    return ", ".join(["runs", *(f"not with {option}" for option in dict.fromkeys(refused))])


def answers(name: str) -> list[str]:
    """The lines about the method and the loss of this name, 80 columns wide.

    Raises:
        ValueError: neither exists.
    """
    known_methods, known_losses = choices("method"), choices("loss")
    found = _about_method(name) if name in known_methods else []
    found += _about_loss(name) if name in known_losses else []
    if not found:
        known = known_methods + known_losses
        raise ValueError(f"{name} is neither a method nor a loss{suggestion(name, known)}")
    return found


def _about_method(name: str) -> list[str]:
    method = module_of("methods", shipped(name)["method"]["kind"]).Config
    plain = {loss: cell(name, loss, "two views", "whole") for loss in losses().values()}
    runs = [loss for loss, cell in plain.items() if not cell.refusal]
    others = {
        f"views={VIEWS['multi-crop']}": ("multi-crop", "whole"),
        "patches=fast": ("two views", "patches"),
    }
    works = {
        choice: not all(cell(name, loss, *option).refusal for loss in runs)
        for choice, option in others.items()
    }
    return [
        f"method={name} gives {_words(method.gives & {*TERMS})}",
        *_line("runs with", "loss", runs),
        *_line("refused with", "loss", [loss for loss in plain if loss not in runs]),
        *(f"{'also runs with' if runs else 'refused with':<15} {choice}" for choice, runs in works.items()),
        *_why(f"method={name}", [f"loss={loss}" for loss in plain if loss not in runs]),
    ]


def _about_loss(name: str) -> list[str]:
    plain = {method: cell(method, name, "two views", "whole") for method in methods()}
    runs = [method for method, cell in plain.items() if not cell.refusal]
    refused = [method for method in plain if method not in runs]
    loss = module_of("losses", written("loss", name)["kind"]).Config
    return [
        *textwrap.wrap(f"loss={name} needs {_words(loss.needs)}", 80),
        *_line("runs with", "method", runs),
        *_line("refused with", "method", refused),
        *_why(f"loss={name}", [f"method={method}" for method in refused]),
    ]


def _words(traits: Collection[str]) -> str:
    return " and ".join(NEEDED[trait] for trait in NEEDED if trait in traits)


def _line(title: str, group: str, names: list[str]) -> list[str]:
    text = f"{title:<15} {group}={', '.join(names)}" if names else ""
    return textwrap.wrap(text, 80, subsequent_indent=" " * 16, break_on_hyphens=False)


def _why(chosen: str, refused: list[str]) -> list[str]:
    return (
        ["This says why a choice is refused:", f"  dvc exp run -S {chosen} -S {refused[0]}"]
        if refused
        else []
    )


@click.command()
@click.argument("name", required=False)
@command.entry_point
def main(name: str | None) -> None:
    """Print what goes with the method or loss NAME; without NAME, a table of all combinations."""
    if name:
        click.echo("\n".join(answers(name)))
    else:
        click.echo(table([cell for method in methods() for cell in cells(method)]))


if __name__ == "__main__":
    main()
