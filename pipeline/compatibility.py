"""The cross of methods and losses: what runs, and what is refused with which sentence; the README shows the table.

python -m pipeline.compatibility
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from cl import config
from pipeline.compose import compose

METHODS = ("simclr", "moco_v1", "moco_v2", "moco_v2_keys", "moco_v3", "simo", "byol", "simsiam", "nnclr")
LOSSES = ("infonce", "dcl", "dclw", "jcl", "cosine")
VIEWS = {"two views": "small", "multi-crop": "small_multicrop"}
PATCHES = {"whole": "whole", "patches": "fast"}


class Cell(NamedTuple):
    """One combination, by the names of its files; `refusal` is empty where it runs."""

    method: str
    loss: str
    views: str
    patches: str
    values: dict[str, Any]
    refusal: str


def cells() -> list[Cell]:
    """All combinations, checked as an experiment's parameters are."""
    methods = {name: _composed(f"method={name}") for name in METHODS}
    losses = {name: _composed(f"loss={name}")["loss"] for name in LOSSES}
    views = {name: _composed(f"views={file}")["views"] for name, file in VIEWS.items()}
    patches = {name: _composed(f"patches={file}")["patches"] for name, file in PATCHES.items()}
    found = []
    for method, values in methods.items():
        for loss in LOSSES:
            for view in views:
                for cut in patches:
                    chosen = {
                        "loss": losses[loss],
                        "views": _with_keys(views[view], method),
                        "patches": patches[cut],
                    }
                    combined = values | chosen
                    found.append(Cell(method, loss, view, cut, combined, _refusal(combined)))
    return found


def _composed(choice: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        compose(Path(folder) / "params.yaml", [choice])
        return config.read(Path(folder) / "params.yaml")


def _with_keys(views: dict[str, Any], method: str) -> dict[str, Any]:
    """JCL's method takes three large views: a query and two keys."""
    return views | {"random": views["random"] | {"count": 3}} if method == "moco_v2_keys" else views


def _refusal(values: dict[str, Any]) -> str:
    try:
        config.check(values)
    except ValueError as error:
        return str(error).removeprefix("params.yaml: ")
    return ""


def table(found: list[Cell]) -> str:
    """Markdown: a row for each method, a column for each loss, and the sentences of what is refused."""
    sentences: dict[str, int] = {}
    for cell in found:
        if cell.refusal:
            sentences.setdefault(_of_any(cell), len(sentences) + 1)
    lines = ["| | " + " | ".join(f"`{loss}`" for loss in LOSSES) + " |", "|---" * (len(LOSSES) + 1) + "|"]
    for method in METHODS:
        texts = [
            _text([c for c in found if (c.method, c.loss) == (method, loss)], sentences) for loss in LOSSES
        ]
        lines.append(f"| `{method}` | " + " | ".join(texts) + " |")
    lines += ["", *(f"{number}. {sentence}" for sentence, number in sentences.items())]
    return "\n".join(lines)


def _text(options: list[Cell], sentences: dict[str, int]) -> str:
    """What a cell of the table says: runs, the number of a sentence, or which of the options is refused with which."""
    plain, *others = options
    if plain.refusal:
        return str(sentences[_of_any(plain)])
    refused: dict[str, str] = {}
    for cell in others:
        if cell.refusal:
            option = cell.patches if cell.patches != "whole" else cell.views
            refused.setdefault(option, f"{option}: {sentences[_of_any(cell)]}")
    return ", ".join(["runs", *refused.values()])


def _of_any(cell: Cell) -> str:
    """The refusal, with this cell's method and loss as placeholders."""
    method, loss = cell.values["method"]["kind"], cell.values["loss"]["kind"]
    return cell.refusal.replace(f"method={method} ", "method=<method> ").replace(
        f"loss={loss} ", "loss=<loss> "
    )


if __name__ == "__main__":
    print(table(cells()))
