"""report: everything about the experiment on one page, report/index.html."""

from pathlib import Path

import click

from pipeline import command

REPORT = Path("report")


@click.command()
@command.entry_point
def main() -> None:
    """Write report/index.html from params.yaml and results/."""
    params = command.params()
    from cl.report import render

    page = render(params.model_dump(mode="json"), command.RESULTS)
    with command.published(REPORT) as folder:
        folder.mkdir()
        (folder / "index.html").write_text(page)


if __name__ == "__main__":
    main()
