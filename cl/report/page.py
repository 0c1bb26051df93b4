"""One self-contained HTML page about an experiment: what was run, how good it is, compared with what, and how to repeat it.

Only what the parameters name is looked for, so that files of an earlier experiment are not mistaken for this one's; what is
missing is shown as "not run".
"""

import base64
import csv
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from cl import charts
from cl.charts import Chart
from cl.report.experiments import results as results_of

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
    for suffix, title in (
        ("", ""),
        ("50", "50"),
        ("75", "75"),
        ("_s", ", small"),
        ("_m", ", medium"),
        ("_l", ", large"),
    )
}
SETTINGS = {"labels", "base_lr", "weight_decay", "n"}  # told beside the results, not compared


def render(params: dict[str, Any], results: Path) -> tuple[str, str]:
    """The page, and its tables as Markdown.

    Args:
        params: the whole of params.yaml.
        results: the folder that holds `<stage>[/<name>].json` with their provenance and folders of tables and pictures.
    """
    read = _Reader(results)
    baselines = {name: read.metrics(f"baseline/{name}") for name in params["baselines"]}
    entries = [*params["evaluations"], *params["transfers"]]
    evaluations = [_row(f"evaluate/{name}", name, read, baselines, entries) for name in params["evaluations"]]
    transfers = [_row(f"transfer/{name}", name, read, baselines, entries) for name in params["transfers"]]
    context = {
        "params": params,
        "data": read.metrics("prepare"),
        "pretrain": read.metrics("pretrain"),
        "provenance": read.provenance("pretrain"),
        "stages": _stages(params, read),
        "baselines": baselines,
        "tables": {"Evaluation": evaluations, "Detection transfer": transfers},
        "verdict": _verdict([*evaluations, *transfers], list(baselines)),
        "curves": [drawn(chart) for chart in _curves(read.table("pretrain/epochs.csv"))],
        "analyses": {name: _analysis(name, read) for name in params["analyses"]},
        "views": read.picture("pretrain/views.png"),
        "detections": {name: read.picture(f"transfer/{name}/detections.png") for name in params["transfers"]},
        "classes": {
            name: read.table(f"{stage}/{name}/classes.csv")
            for stage, names in (("evaluate", params["evaluations"]), ("transfer", params["transfers"]))
            for name in names
        },
        "noted": {name: read.provenance(f"transfer/{name}").get("noted", []) for name in params["transfers"]},
    }
    html, markdown = (
        environment().get_template(name).render(context) for name in ("report.html", "report.md")
    )
    return html, markdown


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
        return (
            "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() if path.exists() else None
        )

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


def _row(
    path: str, name: str, read: _Reader, baselines: dict[str, dict[str, float]], entries: list[str]
) -> dict[str, Any]:
    """One evaluation: its metrics, each beside the same of every baseline; "not run", or "-" for what an encoder has not."""
    columns = [{key.removeprefix(f"{name}_"): value for key, value in read.metrics(path).items()}]
    for baseline, metrics in baselines.items():
        longer = tuple(
            f"{baseline}_{other}_" for other in entries if other.startswith(f"{name}_")
        )  # knn_200 beside knn
        prefix = f"{baseline}_{name}_"
        columns.append(
            {
                k.removeprefix(prefix): v
                for k, v in metrics.items()
                if k.startswith(prefix) and not k.startswith(longer)
            }
        )
    lines = []
    names = dict.fromkeys(key for column in columns for key in column)
    for metric in [name for name in names if name not in SETTINGS and not _deviates(name, names)]:
        cells = [
            _Cell(column.get(metric, "-" if column else "not run"), column.get(f"{metric}_sd"))
            for column in columns
        ]
        lines.append(
            {"title": TITLES.get(metric, metric.replace("_", " ")), "own": cells[0], "others": cells[1:]}
        )
    settings = [f"{TITLES[key]} {value:g}" for key, value in columns[0].items() if key in SETTINGS]
    provenance = read.provenance(path)
    settings = [text for text in (provenance.get("engine"), provenance.get("subset")) if text] + settings
    return {"name": name, "lines": lines, "settings": ", ".join(settings)}


def _stages(params: dict[str, Any], read: _Reader) -> list[dict[str, Any]]:
    return [{"name": name.replace("/", "@"), **read.provenance(name)} for name in results_of(params)]


def environment() -> jinja2.Environment:
    """Where the pages' templates are found."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
        autoescape=jinja2.select_autoescape(("html",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def drawn(chart: Chart) -> dict[str, str | Markup]:
    """A chart as the templates take it."""
    return {"svg": chart.svg(), "title": chart.title}


def _verdict(rows: list[dict[str, Any]], baselines: list[str]) -> str:
    """Did it work, in a sentence: the first metric beside each baseline's."""
    lines = [(row["name"], row["lines"][0]) for row in rows if row["lines"]]
    name, line = next(
        ((name, line) for name, line in lines if not isinstance(line["own"].value, str)), (None, None)
    )
    if line is None:
        return "Nothing has been evaluated yet."
    own = line["own"].value
    found = [
        f"{own - other.value:+.1f} points against the {baseline} encoder's {other.value:.1f}"
        for baseline, other in zip(baselines, line["others"], strict=True)
        if not isinstance(other.value, str)
    ]
    return f"{name}, {line['title']}: {own:.1f} %, {', '.join(found) or 'with no baseline to compare with'}."


def _curves(rows: list[dict[str, str]]) -> list[Chart]:
    """The log of pretraining by epoch."""
    wanted = {
        "loss": ("Pretraining loss", {"loss": "loss"}),
        "kNN top-1 on a part of the data, %": (
            "Nearest neighbours",
            {"knn_top1": "features", "knn_embedding_top1": "embedding"},
        ),
        "sign of collapse": (
            "Embeddings",
            {"alignment": "alignment", "uniformity": "uniformity", "embedding_std": "spread"},
        ),
    }
    found = []
    for number, (axis, (title, columns)) in enumerate(wanted.items()):
        chart = Chart(f"pretraining-{number}", f"{title} by epoch", "epoch", axis)
        for row in rows:
            for column, label in columns.items():
                if column in row:
                    chart.add(label, float(row["epoch"]), float(row[column]))
        if chart.series:
            found.append(chart)
    return found


def _analysis(name: str, read: _Reader) -> dict[str, Any]:
    """The drawings and numbers of one analysis."""
    metrics = read.metrics(f"analyze/{name}")
    found = []
    for chart in charts.of_folder(read.root / "analyze" / name) if metrics else ():
        chart.name = f"{name}-{chart.name}"
        found.append(drawn(chart))
    return {
        "numbers": {key.removeprefix(f"{name}_").replace("_", " "): value for key, value in metrics.items()},
        "drawings": found,
        "picture": read.picture(f"analyze/{name}/neighbours.png") if metrics else None,
    }
