"""The Markdown table of docs/results/parity.md, from what the comparisons have saved."""

import json
from pathlib import Path
from typing import Any

COLUMNS = {
    "losses": ["losses"],
    "gradients": ["gradients"],
    "weights": ["weights"],
    "state": ["buffers", "target", "queue"],
}


def table(folder: Path) -> str:
    """A row for each comparison in the folder's files."""
    lines = [f"| comparison | with | {' | '.join(COLUMNS)} |", "|---" * (2 + len(COLUMNS)) + "|"]
    for file in sorted(folder.glob("*.json")):
        lines += [row(name, entry) for name, entry in json.loads(file.read_text()).items()]
    return "\n".join(lines)


def row(name: str, entry: dict[str, Any]) -> str:
    """The largest difference of each column; those of another kind in words."""
    left = dict(entry["agreement"])
    cells = []
    for kinds in COLUMNS.values():
        differences = [left.pop(kind) for kind in kinds if kind in left]
        cells.append(difference(max(differences)) if differences else "")
    others = [f"{kind}: {value:.0%}" for kind, value in left.items()]
    source = f"{entry['source']} {entry['commit']}{', '.join(['', *others])}"
    return f"| {name} | {source} | {' | '.join(cells)} |"


def difference(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"
