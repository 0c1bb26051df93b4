"""What `cl advise` found: numbers, what follows from them, and a table for training."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cl.commands.inputs.labels import NAMES, Labels
from cl.commands.inputs.sample import Sample
from cl.commands.jobs import trial
from cl.commands.jobs.starts import PIXELS, Start
from cl.console.wording import counted, duration
from cl.encoders.published import is_name
from cl.pretraining.adaptation import smallest_seen
from cl.statistics import PairedComparison

FEW = 200  # images that an adaptation needs
GET, MEGABYTES = "torchvision:resnet50", 98  # a start to download
HOLDOUT = 0.3  # of the labelled images judges a run, unless the folder has val/
TABLE = "for_training.csv"


def labels_of(images: Sample, columns: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The columns of a table of the images that have a label or group."""
    rows = [(name, *known) for name, known in images.listed.items() if any(known)]
    content = {column: [*cells] for column, cells in zip(NAMES, zip(*rows, strict=True), strict=True)}
    others = {name: [cells[path] for path, *_ in rows] for name, cells in columns.items()}
    return content | {name: cells for name, cells in others.items() if name not in content}


@dataclass(frozen=True)
class Named:
    """How commands name the images and their labels."""

    folder: str  # for a shell
    again: str  # the command that asked for advice
    before: list[str]  # commands that a recipe needs
    data: list[str]  # the parameters of a recipe


def for_training(
    images: Sample, table: Labels | None, written: Path | None, *, has_labels: bool, ungrouped: bool
) -> Named:
    """A recipe reads the table `written` by `cl advise`: paths in the user's may start elsewhere."""
    options = [*(table.options() if table else []), *["--ungrouped"] * ungrouped]
    again, before = shlex.join(["cl", "advise", str(images.folder), *options]), list[str]()
    data = [f"dataset.name={images.folder.absolute()}", *["ungrouped=true"] * ungrouped]
    train, val = (
        {label for name, (label, _) in images.listed.items() if name.startswith(split)}
        for split in ("train/", "val/")
    )
    if has_labels and images.has_splits and train == val:
        data.append("dataset=folder")
    elif has_labels:
        before = [f"{again} --minutes 0 --to {TABLE}"] * (written is None)
        path = (written or Path(TABLE)).absolute()
        data += ["dataset=partly_labelled", f"dataset.table={path}", f"dataset.holdout={HOLDOUT}"]
    return Named(shlex.quote(str(images.folder)), again, before, data)


@dataclass(frozen=True)
class Tried:
    """A trial of `own/adapt` from the best start."""

    rate: float
    steps: int
    full: int  # the steps of the recipe on all images, at all rates
    seconds: float  # per step
    comparison: PairedComparison  # of the start (A) and the trained encoder (B), on held-out images
    is_better: bool  # by the rule of `own/adapt`

    @property
    def gain(self) -> str:
        """Of the mean of all measures, in points."""
        row = self.comparison.overall
        return f"{row.difference:+.1f} [{row.low:.1f}, {row.high:.1f}]"

    def __str__(self) -> str:
        row, groups = self.comparison.overall, self.comparison.groups
        return (
            f"trial: {self.steps} of the recipe's {self.full} steps, at rate {self.rate:g}, "
            f"{duration(self.steps * self.seconds)}: {row.a:.1f} % to {row.b:.1f} %, {self.gain}, on "
            f"{counted(self.comparison.images, 'held-out images')} of {counted(groups, 'groups')}"
        )


@dataclass(frozen=True)
class Advice:
    """What to do with the images, and why.

    about: sentences about the images.
    starts: the encoders, best first, and the raw pixels.
    trials: short adaptations of the best start.
    answer: sentences; commands: what to run.
    """

    verdict: Literal["adapt", "try", "keep", "train from scratch", "get an encoder"]
    about: list[str]
    starts: list[Start]
    trials: list[Tried]
    answer: list[str]
    commands: list[str]

    def lines(self) -> Iterator[str]:
        """The screen."""
        width = max(len(start.title) for start in self.starts)
        header = "".join(f"  {measure:<22}" for measure in self.starts[0].measures)
        yield from self.about
        yield f"{'':<{width}}     MB  ms/image  licence     {header}".rstrip()
        for start in self.starts:
            cells = [f"{percent:5.1f} % {within or ''}" for percent, within in start.measures.values()]
            row = f"{start.title:<{width}}  {start.megabytes:5.0f}  {start.milliseconds:8.1f}  "
            row += f"{start.encoder.licence:<12}" + "".join(f"  {cell:<22}" for cell in cells)
            yield row.rstrip()
        yield from map(str, self.trials)
        yield from (f"=> {sentence}" for sentence in self.answer)
        yield from (f"   {command}" for command in self.commands)


def advice(images: int, about: list[str], starts: list[Start], trials: list[Tried], named: Named) -> Advice:
    """What follows from the numbers, for a folder with this number of images."""
    best, pixels, last = starts[0], starts[-1], trials[-1] if trials else None
    small = [*named.before, _run("own/small", named.data)] if images >= FEW else []
    if best is pixels:
        answer = [f"no trained encoder is at hand; {GET} ({MEGABYTES} MB) can be downloaded"]
        if images >= FEW:
            answer.append("without a connection, train one from random weights, which takes hours")
        commands = [f"{named.again} --encoder {GET}", *small]
        return Advice("get an encoder", about, starts, [], answer, commands)
    steps = sum(tried.steps for tried in trials)
    poor = "kNN" in best.measures and best.score <= pixels.score
    worth = f"keep {best.title} as it is"
    if poor:
        worth = (
            f"{best.title} is no better than {PIXELS}: its measures average "
            f"{best.score:.1f} %, {PIXELS} {pixels.score:.1f} %"
        )
    if last and (last.is_better or (steps < last.full and not (poor and images >= FEW))):
        answer = [f"train {best.title} further; expect a gain of {last.gain} points"]
        if not last.is_better:
            answer = [
                f"{steps} of {last.full} steps do not tell what all would gain: {_gains(trials)} points",
                f"the recipe gives {best.title} back unless training makes it better",
            ]
        time = f"{duration(last.full * last.seconds)} here, calculated: {last.full} steps"
        answer.append(f"that takes about {time} of {last.seconds:.2g} s")
        commands = [*named.before, _run("own/adapt", named.data + _settings(best))]
        return Advice("adapt" if last.is_better else "try", about, starts, trials, answer, commands)
    if poor and images >= FEW:
        answer = [worth, "train one from random weights, which takes hours"]
        return Advice("train from scratch", about, starts, trials, answer, small)
    size = best.encoder.transform
    options = "" if best.encoder.records_size else f" --resize {size.resize} --crop {size.crop}"
    command = f"cl embed {named.folder} --to features.parquet --encoder {shlex.quote(best.name)}{options}"
    answer = [worth, *_reasons(best, images, trials)]
    return Advice("keep", about, starts, trials, answer, [command])


def _reasons(best: Start, images: int, trials: list[Tried]) -> list[str]:
    """Why the best start is kept as it is."""
    if trials:
        return [f"no gain shows ({_gains(trials)} points)"]
    if "kNN" not in best.measures:
        return [
            f"its neighbours agree best ({best.score:.1f} %); only labels show what separates classes best",
            "without labels, no number shows whether training does good or harm, so nothing was trained",
            f"50 labels (--labels) would show gains of {smallest_seen(50):.0f} points, 300 of "
            f"{smallest_seen(300):.0f}",
        ]
    if not best.encoder.config:
        return ["own/adapt cannot give back its network, which differs from ours, so nothing was trained"]
    if images < FEW:
        return [f"{images} images are fewer than the {FEW} that training needs"]
    return ["nothing was trained, so a gain is neither shown nor excluded"]


def _gains(trials: list[Tried]) -> str:
    return ", ".join(tried.gain for tried in trials)


def _settings(start: Start) -> list[str]:
    """The overrides for `own/adapt` from a start, judged on images of its size."""
    name = start.name if is_name(start.name) else str(Path(start.name).expanduser().absolute())
    size, view = start.encoder.transform, trial.sizes(start.encoder)[1]
    settings = [f"init={name}", *(trial.OF_ADAMW if trial.ADAMW in trial.optimizers(start.encoder) else [])]
    if size.crop != trial.SIDES[0]:
        settings += [f"dataset.resize={size.resize}", f"dataset.crop={size.crop}"]
    return settings + [f"views.random.size={view}"] * (view != trial.SIDES[0])


def _run(recipe: str, overrides: list[str]) -> str:
    return shlex.join(
        ["dvc", "exp", "run", *(x for each in [f"recipe={recipe}", *overrides] for x in ("-S", each))]
    )
