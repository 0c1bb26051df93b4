"""The Markdown table of docs/results/parity.md, from what the comparisons have saved."""

import json
from pathlib import Path
from typing import Any

KINDS = ("losses", "gradients", "weights", "buffers", "target", "queue")


def table(folder: Path) -> str:
    """A row for each comparison in the folder's files."""
    lines = [f"| comparison | with | {' | '.join(KINDS)} |", "|---" * (2 + len(KINDS)) + "|"]
    for file in sorted(folder.glob("*.json")):
        lines += [row(name, entry) for name, entry in json.loads(file.read_text()).items()]
    return "\n".join(lines)


def row(name: str, entry: dict[str, Any]) -> str:
    """The differences by kind; those of another kind in words."""
    agreement = entry["agreement"]
    cells = [difference(agreement[kind]) if kind in agreement else "" for kind in KINDS]
    others = [f"{kind}: {value:.0%}" for kind, value in agreement.items() if kind not in KINDS]
    source = f"{entry['source']} {entry['commit']}{', '.join(['', *others])}"
    return f"| {name} | {source} | {' | '.join(cells)} |"


def difference(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"
