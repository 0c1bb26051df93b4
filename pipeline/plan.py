"""plan: what the experiment in params.yaml will cost on this machine, from a few real steps of each stage."""

from typing import TYPE_CHECKING

import click

from cl.console.wording import memory
from pipeline.support import command, forecast, locations
from pipeline.support.workplace import Ran, Workplace, copy_of_project

if TYPE_CHECKING:
    from cl.config import Params

GROUPS = {
    "evaluate": "evaluations",
    "transfer": "transfers",
    "analyze": "analyses",
    "baseline": "baselines",
}
COLUMNS = ("stage", "hours", "host memory", "GPU memory", "disk")
Positive = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("stages", nargs=-1, metavar="[STAGE]...")
@click.option("--gpu-tflops", type=Positive, help="Peak of another machine, of all its GPUs together.")
@click.option(
    "--images-per-second",
    type=Positive,
    help="What reading delivers on that machine; by default, what it delivers here.",
)
@command.entry_point
def main(stages: tuple[str, ...], gpu_tflops: float | None, images_per_second: float | None) -> None:
    """Run a few real steps of the STAGEs of params.yaml, or of all, and print what they will cost.

    A stage has the name that DVC gives it (evaluate@knn), or that of its group (evaluate). This needs
    data/shards and changes nothing. It uses all visible GPUs, or CL_PROCESSES processes, as the stages do.
    """
    params = command.params()
    chosen = _chosen(params, stages)
    if images_per_second and not gpu_tflops:
        raise ValueError(f"--images-per-second {images_per_second:g} requires --gpu-tflops of that machine")
    if gpu_tflops and "pretrain" not in chosen:
        raise ValueError(
            f"--gpu-tflops {gpu_tflops:g} is about pretraining: add `pretrain`, or name no stages"
        )
    problems = _problems(params)
    with copy_of_project() as place:
        _give_start(params, place)
        ran = _rehearse(place, chosen)
        pretraining = ran["pretrain"] if "pretrain" in chosen else None
        if isinstance(pretraining, Ran):
            drawing = place.rehearse("draw")
            delivered = forecast.images_per_second(params, drawing)
            pretraining.waiting = forecast.waiting(params, pretraining, delivered)
        click.echo(table({stage: ran[stage] for stage in chosen}))
        if isinstance(pretraining, Ran):
            workers = drawing.report["workers"]
            click.echo(forecast.bottleneck(params, pretraining, delivered, workers=workers))
            click.echo(forecast.checkpoints(place))
            click.echo(forecast.largest_batch(params, place, pretraining))
            if gpu_tflops:
                rate = images_per_second or delivered
                click.echo(forecast.elsewhere(params, place, pretraining, gpu_tflops, rate))
    click.echo("\n".join(f"Later: {problem}" for problem in problems) or "No parameter will fail later.")


def _chosen(params: "Params", stages: tuple[str, ...]) -> list[str]:
    """The stages that train or measure, by DVC's names, or those of them that are asked for."""
    groups = [(stage, getattr(params, group)) for stage, group in GROUPS.items()]
    known = ["pretrain", *(f"{stage}@{name}" for stage, group in groups for name in group)]
    for stage in stages:
        if stage not in (*known, *GROUPS):
            raise ValueError(f"params.yaml has no stage {stage}; choose from {', '.join((*known, *GROUPS))}")
    return [name for name in known if not stages or {name, name.split("@")[0]} & set(stages)]


def _problems(params: "Params") -> list[str]:
    """What will fail later, or give numbers that mislead.

    Raises:
        ValueError: the shards are missing.
    """
    from cl.config.rules import data_problems, warnings

    train, val = (locations.reader(split, params.dataset) for split in ("train", "val"))
    return [*data_problems(params, train, val), *warnings(params), *locations.missing(params.transfers)]


def _give_start(params: "Params", place: Workplace) -> None:
    """Raises ValueError if pretraining starts from weights that were not fetched yet."""
    if (place.folder / locations.START).exists():
        return
    if params.init or params.start_from:
        raise ValueError(f"{locations.START} is missing: run `dvc repro weights` first")
    place.run("weights")


def _rehearse(place: Workplace, chosen: list[str]) -> dict[str, Ran | str]:
    """What pretraining and the chosen stages use, or why they failed."""
    progress = command.progress("plan")
    ran: dict[str, Ran | str] = {}
    for stage in dict.fromkeys(["pretrain", *chosen]):  # the others need its models
        progress.say(f"a part of {stage}")
        try:
            ran[stage] = place.rehearse(*stage.split("@"))
        except ValueError as error:
            ran[stage] = str(error)
    return ran


def table(ran: dict[str, Ran | str]) -> str:
    """A row for each stage and one for the total, and below them why stages were not measured."""
    measured = [found for found in ran.values() if isinstance(found, Ran)]
    rows: list[tuple[str, ...]] = [COLUMNS]
    rows += [_row(stage, [found] if isinstance(found, Ran) else []) for stage, found in ran.items()]
    rows.append(_row("total", measured))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [f"{stage}: {why}" for stage, why in ran.items() if isinstance(why, str)]
    return "\n".join(line.rstrip() for line in lines)


def _row(name: str, parts: list[Ran]) -> tuple[str, ...]:
    """The cells of one stage, or of several: the sum of hours and disk, and the peak of memory."""
    if not parts:
        return name, "not measured", "", "", ""
    gpus = [part.gpu_bytes for part in parts if part.gpu_bytes]
    return (
        name,
        f"{sum(part.whole_seconds for part in parts) / 3600:.3g}",
        memory(max(part.host_bytes for part in parts)),
        memory(max(gpus)) if gpus else "-",
        memory(sum(part.disk_bytes for part in parts)),
    )


if __name__ == "__main__":
    main()
