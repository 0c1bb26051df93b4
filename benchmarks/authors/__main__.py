"""Our methods beside their authors' code, on the CPU in float64: `python -m benchmarks.authors NAME`.

The same weights, views and draws on both sides, five optimizer steps; the largest relative difference of the
losses, gradients, weights, buffers, target and queue. Nothing is downloaded: `--source` is the folder of a
clone that you made. Without a name, it lists the names with the repositories and commits.
"""

import importlib
import json
import time
from pathlib import Path
from typing import Any

import click

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
SAVED = Path("tests/authors")


@click.command(help=__doc__)
@click.argument("name", required=False, type=click.Choice(NAMES))
@click.option(
    "--source",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder of a clone; repeatable.",
)
@click.option("--only", help="The name of a single comparison.")
@click.option(
    "--table", "tabular", is_flag=True, help="Print the table of what is saved, for docs/results/parity.md."
)
@click.option("--save", is_flag=True, help=f"Write the numbers of our side to {SAVED}.")
def main(name: str | None, folders: tuple[Path, ...], only: str | None, tabular: bool, save: bool) -> None:
    from benchmarks.authors.harness.source import assign
    from benchmarks.authors.harness.table import table

    if tabular:
        if name or folders or only or save:
            raise click.UsageError("--table takes no name and no other option")
        click.echo(table(SAVED))
        return
    if name is None:
        if folders or only or save:
            raise click.UsageError("--source, --only and --save need the name of a comparison")
        list_names()
        return
    comparisons = [c for c in comparisons_of(name) if only in (None, c.name)]
    if not comparisons:
        choices = ", ".join(c.name for c in comparisons_of(name))
        raise click.ClickException(f"--only {only} is not a comparison of {name}; choices: {choices}")
    try:
        found = assign(folders, [comparison.source for comparison in comparisons])
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    chosen = [c for c in comparisons if c.source in found]
    if not chosen:
        wanted = " or ".join(dict.fromkeys(str(comparison.source) for comparison in comparisons))
        raise click.ClickException(f"nothing to compare with; pass --source with a clone of {wanted}")
    failed = [c.name for c in chosen if not agrees(name, c, found[c.source], save=save)]
    if failed:
        raise click.ClickException(f"differs by more than expected: {', '.join(failed)}")


def list_names() -> None:
    for name in NAMES:
        click.echo(name)
        for source in dict.fromkeys(comparison.source for comparison in comparisons_of(name)):
            click.echo(f"    {source}")


def comparisons_of(name: str) -> list[Any]:
    return importlib.import_module(f"benchmarks.authors.{name}").COMPARISONS


def agrees(name: str, comparison: Any, folder: Path, *, save: bool) -> bool:
    """Compare and print; save what was measured if the difference is as small as expected."""
    from benchmarks.authors.harness.processes import compare

    began = time.perf_counter()
    agreement, numbers = compare(comparison, folder)
    shown = "  ".join(f"{kind} {value:.0e}" for kind, value in agreement.items())
    click.echo(f"{comparison.name:<28} {shown}  ({time.perf_counter() - began:.0f} s)")
    agreed = max(agreement.values()) <= comparison.tolerance
    if save and agreed:
        write(SAVED / f"{name}.json", comparison, agreement, numbers)
    return agreed


def write(file: Path, comparison: Any, agreement: dict[str, float], numbers: dict[str, Any]) -> None:
    """Add or replace a comparison in the file of its source."""
    saved = json.loads(file.read_text()) if file.exists() else {}
    saved[comparison.name] = {
        "source": comparison.source.repository,
        "commit": comparison.source.commit,
        "processes": comparison.processes,
        "agreement": {kind: float(f"{value:.1e}") for kind, value in agreement.items()},
        "numbers": rounded(numbers),
    }
    text = json.dumps(dict(sorted(saved.items())), indent=1)
    file.write_text(one_line_lists(text) + "\n")


def rounded(value: Any) -> Any:
    """Numbers to ten digits."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.10g}")


def one_line_lists(text: str) -> str:
    """Lists of numbers on one line each."""
    import re

    return re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match[0].split()), text)


if __name__ == "__main__":
    main()
