"""report: everything about the experiment on one page, report/index.html; or about all experiments, summary/index.html."""

import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from pipeline import command

REPORT, SUMMARY = Path("report"), Path("summary")


@click.command()
@click.option(
    "--all", "everything", is_flag=True, help="All experiments of the repository, beside the papers."
)
@command.entry_point
def main(everything: bool) -> None:
    """Write index.html and tables.md: to report/ of params.yaml and results/, or with --all to summary/."""
    if everything:
        return summarise()
    params = command.params().model_dump(mode="json")
    from cl.report.page import render

    if "DVC_STAGE" in os.environ:  # all that the report shows has just been made, or is what dvc.lock says
        _fetch(params)
    _publish(REPORT, *render(params, command.RESULTS))
    return None


def _fetch(params: dict[str, Any]) -> None:
    """Bring what `dvc repro --pull --allow-missing` has left in the remote: it must not pass for what was not run.

    Raises:
        ValueError: a result that dvc.lock knows cannot be had.
    """
    from cl.config import read
    from cl.report.experiments import results

    stages = read(Path("dvc.lock"))["stages"]
    outs = [
        out["path"]
        for name in results(params)
        for out in stages.get(name.replace("/", "@"), {}).get("outs", [])
    ]
    missing = [path for path in outs if command.RESULTS in Path(path).parents and not Path(path).exists()]
    if (
        missing
        and (done := subprocess.run(["dvc", "pull", *missing], capture_output=True, text=True)).returncode
    ):
        raise ValueError(
            f"{missing[0]} is in dvc.lock, but neither here nor in DVC's cache or remote: {done.stderr.strip()}"
        )


def summarise() -> None:
    """All finished experiments, and the papers' tables with what answers them."""
    from cl.report.experiments import distinct
    from cl.report.summary import page
    from pipeline.collect import collect

    progress = command.progress("report")
    experiments = distinct(collect(progress.say))
    if not experiments:
        raise ValueError("no experiment has finished here yet; run one first: dvc exp run")
    html, markdown = page(experiments, _composed)
    _publish(SUMMARY, html, markdown)
    progress.say(f"{len(experiments)} experiments: {SUMMARY}/index.html, {SUMMARY}/tables.md")


@functools.cache
def _composed(run: str) -> dict[str, Any]:
    """The parameters that these overrides compose to."""
    from cl.config import read
    from pipeline.compose import compose

    with tempfile.TemporaryDirectory() as folder:
        compose(Path(folder) / "params.yaml", run.split())
        return read(Path(folder) / "params.yaml")


def _publish(target: Path, html: str, markdown: str) -> None:
    with command.published(target) as folder:
        folder.mkdir()
        (folder / "index.html").write_text(html)
        (folder / "tables.md").write_text(markdown)


if __name__ == "__main__":
    main()
