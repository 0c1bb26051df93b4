"""One self-contained HTML page per experiment: what was run, results beside baselines, how to repeat it.

Only results named by the parameters are read, so that files of an earlier experiment are not mistaken for
this one's; a missing result is shown as "not run".
"""

import base64
import csv
import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from cl import charts
from cl.charts import Chart
from cl.report.experiments import result_names

TITLES = {
    "top1": "top-1",
    "top5": "top-5",
    "best_top1": "top-1, best epoch",
    "best_top5": "top-5, best epoch",
    "cached_top1": "top-1, stored features",
    "cached_top5": "top-5, stored features",
    "cached_best_top1": "top-1, stored features, best epoch",
    "cached_best_top5": "top-5, stored features, best epoch",
    "scratch_top1": "top-1, whole network trained from scratch",
    "embedding_top1": "top-1, projector's embedding",
    "pixels_top1": "top-1, raw pixels",
    "leave_one_out_top1": "top-1, training images, each classified by the others",
    "hit1": "found by an augmented view",
    "hit5": "among the nearest five",
    "embedding_hit1": "found by an augmented view, projector's embedding",
    "embedding_hit5": "among the nearest five, projector's embedding",
    "pixels_hit1": "found by an augmented view, raw pixels",
    "pixels_hit5": "among the nearest five, raw pixels",
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
SETTINGS = {"labels", "base_lr", "weight_decay", "n"}  # shown beside the results, not compared
CURVES = {  # by the title of the y axis: the title of the chart, and labels by column of pretrain/epochs.csv
    "loss": ("Pretraining loss", {"loss": "loss"}),
    "kNN top-1 on a subset of the data, %": (
        "Nearest neighbours",
        {"knn_top1": "features", "knn_embedding_top1": "embedding"},
    ),
    "sign of collapse": (
        "Embeddings",
        {"alignment": "alignment", "uniformity": "uniformity", "embedding_std": "spread"},
    ),
}


def render(params: dict[str, Any], results: Path) -> tuple[str, str]:
    """The page, and its tables as Markdown.

    Args:
        params: the contents of params.yaml.
        results: the folder with `<stage>[/<name>].json`, provenance, and folders of tables and pictures.
    """
    read = _Reader(results, pictures=params["report"]["pictures"])
    baselines = {name: read.metrics(f"baseline/{name}") for name in params["baselines"]}
    tables = _tables(params, read, baselines)
    context = {
        "params": params,
        "data": read.metrics("prepare"),
        "provenance": read.provenance("pretrain"),
        "stages": [
            {"name": name.replace("/", "@"), **read.provenance(name)} for name in result_names(params)
        ],
        "baselines": baselines,
        "tables": tables,
        "verdict": _verdict([row for rows in tables.values() for row in rows], list(baselines)),
        "curves": [drawing(chart) for chart in _curves(read.table("pretrain/epochs.csv"))],
        "analyses": {name: _analysis(name, read) for name in params["analyses"]},
        **_details(params, read),
    }
    html, markdown = (environment().get_template(f"report.{suffix}") for suffix in ("html", "md"))
    return html.render(context), markdown.render(context)


def _tables(
    params: dict[str, Any], read: "_Reader", baselines: dict[str, dict[str, float]]
) -> dict[str, list[dict[str, Any]]]:
    entries = [*params["evaluations"], *params["transfers"]]
    groups = {
        "Evaluation": ("evaluate", params["evaluations"]),
        "Detection transfer": ("transfer", params["transfers"]),
    }
    return {
        title: [_row(f"{stage}/{name}", read, baselines, entries) for name in names]
        for title, (stage, names) in groups.items()
    }


def _details(params: dict[str, Any], read: "_Reader") -> dict[str, Any]:
    """Pictures, accuracies by class, and remarks on the data of the transfers."""
    transfers = params["transfers"]
    entries = [f"evaluate/{name}" for name in params["evaluations"]]
    entries += [f"transfer/{name}" for name in transfers]
    return {
        "views": read.picture("pretrain/views.png"),
        "detections": {name: read.picture(f"transfer/{name}/detections.png") for name in transfers},
        "classes": {entry.partition("/")[2]: read.table(f"{entry}/classes.csv") for entry in entries},
        "remarks": {name: read.provenance(f"transfer/{name}").get("noted", []) for name in transfers},
    }


class _Reader:
    """Reads result files; a missing file is empty, and without `pictures` so is every picture."""

    def __init__(self, root: Path, *, pictures: bool) -> None:
        self.root, self.pictures = root, pictures

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
        if not self.pictures or not path.exists():
            return None
        return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()

    def _file(self, name: str) -> Path:
        """The file; if the evaluation was repeated over seeds, that of the first seed."""
        path = self.root / name
        return next(iter(sorted(path.parent.glob(f"seed-*/{path.name}"))), path)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.root / name
        return json.loads(path.read_text()) if path.exists() else {}


class _Cell(NamedTuple):
    """A number with its standard deviation over seeds, or the reason why it is missing."""

    value: float | str
    sd: float | None


def _row(
    path: str, read: _Reader, baselines: dict[str, dict[str, float]], entries: list[str]
) -> dict[str, Any]:
    """One evaluation: its metrics beside the baselines'; "-" for a missing metric, or "not run"."""
    name = path.partition("/")[2]
    own = {key.removeprefix(f"{name}_"): value for key, value in read.metrics(path).items()}
    columns = [own]
    columns += [_of_baseline(baseline, name, metrics, entries) for baseline, metrics in baselines.items()]
    names = dict.fromkeys(key for column in columns for key in column)
    shown = [metric for metric in names if metric not in SETTINGS and not _is_deviation(metric, names)]
    settings = [f"{TITLES[key]} {value:g}" for key, value in own.items() if key in SETTINGS]
    provenance = read.provenance(path)
    settings = [text for text in (provenance.get("engine"), provenance.get("subset")) if text] + settings
    return {
        "name": name,
        "lines": [_line(metric, columns) for metric in shown],
        "settings": ", ".join(settings),
    }


def _of_baseline(baseline: str, name: str, metrics: dict[str, float], entries: list[str]) -> dict[str, float]:
    """A baseline's metrics in one evaluation, without those of longer names (for knn, not knn_200)."""
    prefix = f"{baseline}_{name}_"
    longer = tuple(f"{baseline}_{other}_" for other in entries if other.startswith(f"{name}_"))
    return {
        key.removeprefix(prefix): value
        for key, value in metrics.items()
        if key.startswith(prefix) and not key.startswith(longer)
    }


def _is_deviation(metric: str, metrics: Collection[str]) -> bool:
    """Whether this is the standard deviation of another metric."""
    return metric.endswith("_sd") and metric.removesuffix("_sd") in metrics


def _line(metric: str, columns: list[dict[str, float]]) -> dict[str, Any]:
    cells = [
        _Cell(column.get(metric, "-" if column else "not run"), column.get(f"{metric}_sd"))
        for column in columns
    ]
    return {"title": TITLES.get(metric, metric.replace("_", " ")), "own": cells[0], "others": cells[1:]}


def environment() -> jinja2.Environment:
    """The templates of the pages."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
        autoescape=jinja2.select_autoescape(("html",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def drawing(chart: Chart) -> dict[str, str | Markup]:
    """A chart in the form that the templates expect."""
    return {"svg": chart.svg(), "title": chart.title}


def _verdict(rows: list[dict[str, Any]], baselines: list[str]) -> str:
    """One sentence that compares the first metric with each baseline's."""
    firsts = [(row["name"], row["lines"][0]) for row in rows if row["lines"]]
    measured = [(name, line) for name, line in firsts if not isinstance(line["own"].value, str)]
    if not measured:
        return "Nothing has been evaluated yet."
    name, line = measured[0]
    own = line["own"].value
    gains = [
        f"{own - other.value:+.1f} points against the {baseline} encoder's {other.value:.1f}"
        for baseline, other in zip(baselines, line["others"], strict=True)
        if not isinstance(other.value, str)
    ]
    return f"{name}, {line['title']}: {own:.1f} %, {', '.join(gains) or 'with no baseline to compare with'}."


def _curves(rows: list[dict[str, str]]) -> list[Chart]:
    """Charts of the pretraining log by epoch; none for columns that were not logged."""
    found = []
    for number, (axis, (title, columns)) in enumerate(CURVES.items()):
        chart = Chart(f"pretraining-{number}", f"{title} by epoch", "epoch", axis)
        for row in rows:
            for column, label in columns.items():
                if column in row:
                    chart.add(label, float(row["epoch"]), float(row[column]))
        if chart.series:
            found.append(chart)
    return found


def _analysis(name: str, read: _Reader) -> dict[str, Any]:
    """The charts, numbers and picture of one analysis; empty if it was not run."""
    metrics = read.metrics(f"analyze/{name}")
    found = charts.load_folder(read.root / "analyze" / name) if metrics else ()
    return {
        "numbers": {key.removeprefix(f"{name}_").replace("_", " "): value for key, value in metrics.items()},
        "drawings": [drawing(replace(chart, name=f"{name}-{chart.name}")) for chart in found],
        "picture": read.picture(f"analyze/{name}/neighbours.png") if metrics else None,
    }
