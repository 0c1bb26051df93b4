"""report: write report/index.html about the experiment, or with --all summary/index.html about all."""

import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cl.config import read
from cl.config.params import Transfer
from cl.console.wording import counted
from cl.report.experiments import changed_params, distinct, judged_together, result_names
from cl.report.files import ResultFiles
from cl.report.page import render
from cl.report.summary import page, table
from cl.runtime.registry import module_of
from pipeline.composition.compose import command_for, compose
from pipeline.support import command, locations, provenance
from pipeline.support.collect import collect

REPORT, SUMMARY = Path("report"), Path("summary")


@click.command()
@click.option(
    "--all", "everything", is_flag=True, help="All experiments of the repository, beside the papers' numbers."
)
@click.option("--table", "printed", is_flag=True, help="Print a table of all experiments.")
@command.entry_point
def main(everything: bool, printed: bool) -> None:
    """Write index.html and tables.md to report/, from params.yaml and results/; or with --all to summary/."""
    if everything or printed:
        say = command.progress("report").say
        experiments = distinct(collect(say))
        if not experiments:
            raise ValueError("no experiment has finished here yet; run one first: dvc exp run")
        if printed:
            Console().print(table(experiments))
        if everything:
            _publish(SUMMARY, *page(experiments, functools.cache(lambda run: compose(run.split())), title))
            say(f"{counted(len(experiments), 'experiments')}: {SUMMARY}/index.html, {SUMMARY}/tables.md")
        return
    params = command.params()
    values = params.model_dump(mode="json")
    if "DVC_STAGE" in os.environ:  # then dvc.lock describes all results that the report shows
        _fetch(values)
    _check(provenance.params())
    own = ResultFiles(command.RESULTS, pictures=False).provenance("pretrain")
    judged = own.get("adaptation", {}).get("rows")
    remark = judged_together(own, collect(lambda text: None)) if judged else ""
    pages = render(values, command.RESULTS, command_for(params), params.titles, remark)
    _publish(REPORT, *pages)
    _say_what_is_next()


def _say_what_is_next() -> None:
    """Where the results are, for a user who has waited for this stage, the last."""
    say = command.progress("report").say
    if locations.is_temporary_copy():
        name = os.environ.get("DVC_EXP_NAME", "<name>")
        say(f"`dvc exp apply {name}` brings the results into the workspace")
        return
    say(f"open {REPORT}/index.html in a browser")
    if locations.BACKBONE.is_file():
        say(f'use it in Python: cl.load("{locations.BACKBONE.absolute()}").embed(["a.jpg", "b.jpg"])')


def _fetch(params: dict[str, Any]) -> None:
    """Pull results that `dvc repro --pull --allow-missing` left in the remote; the report would lack them."""
    stages = read(Path("dvc.lock"))["stages"]
    recorded = [stages.get(name.replace("/", "@"), {}) for name in result_names(params)]
    paths = [Path(output["path"]) for stage in recorded for output in stage.get("outs", [])]
    missing = [path for path in paths if command.RESULTS in path.parents and not path.exists()]
    if not missing:
        return
    pulled = subprocess.run(["dvc", "pull", *missing], capture_output=True, text=True)
    if pulled.returncode:
        raise ValueError(f"{missing[0]} is in dvc.lock, but cannot be pulled: {pulled.stderr.strip()}")


def _check(params: dict[str, Any]) -> None:
    """Refuse results of an earlier run, which a run that was stopped leaves beside its own params.yaml."""
    read = ResultFiles(command.RESULTS, pictures=False)
    for name in result_names(params):
        if changed := changed_params(read.provenance(name), params):
            raise ValueError(
                f"{command.RESULTS}/{name} has another {changed[0]} than params.yaml: run `dvc repro`"
            )


def title(stage: str, values: dict[str, Any]) -> str:
    """What an evaluation or transfer is called; raises ValueError if these are not its parameters today."""
    config = Transfer if stage == "transfer" else module_of("evaluations", values["kind"]).Config
    return config.model_validate(values).title


def _publish(target: Path, html: str, markdown: str) -> None:
    with command.published(target) as folder:
        folder.mkdir()
        (folder / "index.html").write_text(html)
        (folder / "tables.md").write_text(markdown)


if __name__ == "__main__":
    main()
