"""One self-contained HTML page about an experiment: what was run, how good it is, compared with what, and how to repeat it.

Only what the parameters name is looked for, so that files of an earlier experiment are not mistaken for this one's; what is
missing is shown as "not run".
"""

import base64
import csv
import io
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import markupsafe
import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#3a86ff", "#e07a1f", "#2a9d5c", "#b5179e", "#d1343a", "#6c757d", "#17a2b8", "#8a6d3b")
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cl",
    "font.size": 9,
    "text.color": "#888888",
    "axes.labelcolor": "#888888",
    "axes.edgecolor": "#888888",
    "xtick.color": "#888888",
    "ytick.color": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
TITLES = {
    "top1": "top-1",
    "top5": "top-5",
    "best_top1": "top-1, best epoch",
    "best_top5": "top-5, best epoch",
    "cached_top1": "top-1, stored features",
    "cached_top5": "top-5, stored features",
    "cached_best_top1": "top-1, stored features, best epoch",
    "cached_best_top5": "top-5, stored features, best epoch",
    "scratch_top1": "top-1, all of it trained from scratch",
    "embedding_top1": "top-1, projector's embedding",
    "pixels_top1": "top-1, raw pixels",
    "leave_one_out_top1": "top-1, training images, each by the others",
    "labels": "labels used",
    "base_lr": "base learning rate chosen on these images",
    "weight_decay": "weight decay",
    "n": "mean ± standard deviation, seeds:",
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
}
TITLES |= {
    f"{kind}_ap{suffix}": f"{kind} AP{title}"
    for kind in ("box", "mask")
    for suffix, title in (("", ""), ("50", "50"), ("75", "75"), ("_s", ", small"), ("_m", ", medium"), ("_l", ", large"))
}
SETTINGS = {"labels", "base_lr", "weight_decay", "n"}  # told beside the results, not compared


def render(params: dict[str, Any], results: Path) -> str:
    """The page.

    Args:
        params: the whole of params.yaml.
        results: the folder that holds `<stage>[/<name>].json` with their provenance and folders of tables and pictures.
    """
    read = _Reader(results)
    baselines = {name: read.metrics(f"baseline/{name}") for name in params["baselines"]}
    entries = [*params["evaluations"], *params["transfers"]]
    evaluations = [_row(f"evaluate/{name}", name, read, baselines, entries) for name in params["evaluations"]]
    transfers = [_row(f"transfer/{name}", name, read, baselines, entries) for name in params["transfers"]]
    with matplotlib.rc_context(STYLE):
        curves = _curves(read.table("pretrain/epochs.csv"))
        analyses = {name: _analysis(entry["kind"], name, read) for name, entry in params["analyses"].items()}
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    ).get_template("report.html")
    return template.render(
        params=params,
        data=read.metrics("prepare"),
        pretrain=read.metrics("pretrain"),
        provenance=read.provenance("pretrain"),
        stages=_stages(params, read),
        baselines=baselines,
        tables={"Evaluation": evaluations, "Detection transfer": transfers},
        curves=curves,
        analyses=analyses,
        views=read.picture("pretrain/views.png"),
        neighbours={name: read.picture(f"evaluate/{name}/neighbours.png") for name in params["evaluations"]},
        detections={name: read.picture(f"transfer/{name}/detections.png") for name in params["transfers"]},
        classes={
            name: read.table(f"{stage}/{name}/classes.csv")
            for stage, names in (("evaluate", params["evaluations"]), ("transfer", params["transfers"]))
            for name in names
        },
        noted={name: read.provenance(f"transfer/{name}").get("noted", []) for name in params["transfers"]},
    )


class _Reader:
    """Files of results; what is missing is empty."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def metrics(self, name: str) -> dict[str, float]:
        return self._json(f"{name}.json")

    def provenance(self, name: str) -> dict[str, Any]:
        return self._json(f"{name}.provenance.json")

    def table(self, name: str) -> list[dict[str, str]]:
        path = self._file(name)
        if not path.exists():
            return []
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def picture(self, name: str) -> str | None:
        path = self._file(name)
        return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() if path.exists() else None

    def _file(self, name: str) -> Path:
        """Of several seeds, the first one's."""
        path = self.root / name
        return next(iter(sorted(path.parent.glob(f"seed-*/{path.name}"))), path)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.root / name
        return json.loads(path.read_text()) if path.exists() else {}


class _Cell(NamedTuple):
    """A number, or why there is none, and its standard deviation over several seeds."""

    value: float | str
    sd: float | None


def _deviates(name: str, names: Collection[str]) -> bool:
    """Whether this is the standard deviation of another metric."""
    return name.endswith("_sd") and name.removesuffix("_sd") in names


def _row(path: str, name: str, read: _Reader, baselines: dict[str, dict[str, float]], entries: list[str]) -> dict[str, Any]:
    """One evaluation: its metrics, each beside the same of every baseline; "not run", or "-" for what an encoder has not."""
    columns = [{key.removeprefix(f"{name}_"): value for key, value in read.metrics(path).items()}]
    for baseline, metrics in baselines.items():
        longer = tuple(f"{baseline}_{other}_" for other in entries if other.startswith(f"{name}_"))  # knn_200 beside knn
        prefix = f"{baseline}_{name}_"
        columns.append(
            {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix) and not k.startswith(longer)}
        )
    lines = []
    names = dict.fromkeys(key for column in columns for key in column)
    for metric in [name for name in names if name not in SETTINGS and not _deviates(name, names)]:
        cells = [_Cell(column.get(metric, "-" if column else "not run"), column.get(f"{metric}_sd")) for column in columns]
        lines.append({"title": TITLES.get(metric, metric.replace("_", " ")), "own": cells[0], "others": cells[1:]})
    settings = [f"{TITLES[key]} {value:g}" for key, value in columns[0].items() if key in SETTINGS]
    provenance = read.provenance(path)
    settings = [text for text in (provenance.get("engine"), provenance.get("subset")) if text] + settings
    return {"name": name, "lines": lines, "settings": ", ".join(settings)}


def _stages(params: dict[str, Any], read: _Reader) -> list[dict[str, Any]]:
    names = ["prepare", "pretrain"]
    for stage, group in (
        ("evaluate", "evaluations"),
        ("transfer", "transfers"),
        ("analyze", "analyses"),
        ("baseline", "baselines"),
    ):
        names += [f"{stage}/{name}" for name in params[group]]
    return [{"name": name.replace("/", "@"), **read.provenance(name)} for name in names]


def _svg(draw: Callable[[Axes], None], description: str) -> markupsafe.Markup:
    """A drawing as inline SVG with a text alternative."""
    figure = Figure(figsize=(5.2, 2.9), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    draw(axes)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = file.getvalue()
    label = markupsafe.escape(description)
    return markupsafe.Markup(svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


def _curves(rows: list[dict[str, str]]) -> list[markupsafe.Markup]:
    """Loss and kNN by epoch."""
    if not rows:
        return []
    epochs = [int(row["epoch"]) for row in rows]
    drawings = []
    for key, title in (("loss", "loss"), ("knn_top1", "kNN top-1 on a part of the data, %")):
        values = [float(row[key]) for row in rows]

        def draw(axes: Axes, values: list[float] = values, title: str = title) -> None:
            axes.plot(epochs, values, color=COLOURS[0], marker="o", markersize=3)
            axes.set(xlabel="epoch", ylabel=title)

        drawings.append(_svg(draw, f"{title} by epoch, from {values[0]:.2f} to {values[-1]:.2f}"))
    return drawings


def _analysis(kind: str, name: str, read: _Reader) -> dict[str, Any]:
    """The drawings and numbers of one analysis."""
    metrics = read.metrics(f"analyze/{name}")
    histogram = read.table(f"analyze/{name}/histogram.csv")
    drawings = []
    if multiplier := read.table(f"analyze/{name}/multiplier.csv"):

        def draw_multiplier(axes: Axes) -> None:
            sizes = [int(row["batch_size"]) for row in multiplier]
            for column, label, colour in (("mean", "mean", COLOURS[0]), ("variation", "standard deviation / mean", COLOURS[1])):
                axes.plot(
                    sizes, [float(row[column]) for row in multiplier], color=colour, marker="o", markersize=3, label=label
                )
            axes.set_xscale("log", base=2)
            axes.set(xlabel="images a batch", ylabel="NPC multiplier", ylim=(0, None))
            axes.legend(frameon=False)

        drawings.append(_svg(draw_multiplier, "mean and variation of the NPC multiplier by batch size"))
    if histogram:
        series = list(dict.fromkeys(row["series"] for row in histogram))

        def draw_histogram(axes: Axes) -> None:
            for colour, label in zip(COLOURS, series, strict=False):
                rows = [row for row in histogram if row["series"] == label]
                edges = [float(row["from"]) for row in rows] + [float(rows[-1]["to"])]
                axes.stairs([float(row["density"]) for row in rows], edges, color=colour, label=label)
            axes.set(xlabel="cosine" if kind == "similarity" else "NPC multiplier", ylabel="density")
            axes.legend(frameon=False)

        drawings.append(_svg(draw_histogram, f"histogram of {name}: {', '.join(series)}"))
    numbers = {key.removeprefix(f"{name}_").replace("_", " "): value for key, value in metrics.items()}
    return {"drawings": drawings, "numbers": numbers}
