"""Charts of the log of pretraining by epoch."""

import math
from typing import NamedTuple

from markupsafe import Markup

from cl.report.charts import Chart
from cl.report.experiments import Experiment, grouped, joint_name, settings
from cl.report.files import ResultFiles
from cl.statistics import mean_and_sd


class Curve(NamedTuple):
    """Columns of pretrain/epochs.csv with their labels, and how to read them."""

    title: str
    axis: str
    columns: dict[str, str]
    meaning: str


LOSS = Curve("Pretraining loss", "loss", {"loss": "loss"}, "What training minimises; lower is better.")
NEIGHBOURS = Curve(
    "Nearest neighbours",
    "kNN top-1 on a subset of the data, %",
    {"knn_top1": "features", "knn_embedding_top1": "embedding"},
    "How often the nearest training images have the right class, while training; higher is better.",
)
CURVES = (
    LOSS,
    NEIGHBOURS,
    Curve(
        "Embeddings",
        "sign of collapse",
        {"alignment": "alignment", "uniformity": "uniformity", "embedding_std": "spread"},
        "All three are 0 if all images have collapsed to one point.",
    ),
    Curve(
        "Learning rate", "learning rate", {"lr": "learning rate"}, "As scheduled, at the end of each epoch."
    ),
    Curve(
        "Norm of the gradient",
        "norm of the gradient",
        {"gradient_norm": "gradient"},
        "Mean over the steps of an epoch; sudden growth means that the learning rate is too high.",
    ),
)


def pretraining(read: ResultFiles) -> list[dict[str, str | Markup]]:
    """Charts of the columns that pretraining has logged."""
    rows = read.table("pretrain", "epochs.csv")
    charts = [_by_epoch(f"pretraining-{number}", curve, rows) for number, curve in enumerate(CURVES)]
    return [drawing(c, curve.meaning) for c, curve in zip(charts, CURVES, strict=True) if _has_curves(c)]


def _by_epoch(name: str, curve: Curve, rows: list[dict[str, str]]) -> Chart:
    chart = Chart(name, f"{curve.title} by epoch", "epoch", curve.axis)
    chart.add_log(rows, curve.columns)
    return chart


def overlaid(experiments: list[Experiment]) -> Chart | None:
    """Means over seeds, each once, by epoch: kNN accuracy if any experiment logged it, otherwise the loss."""
    groups = grouped(experiments, lambda each: (each.data, settings(each.params)))
    for curve, column in ((NEIGHBOURS, "knn_top1"), (LOSS, "loss")):
        chart = Chart("curves", f"{curve.title} by epoch", "epoch", curve.axis)
        for group in groups:
            by_epoch: dict[str, dict[int, float]] = {}
            for seed, row in ((each.seed, row) for each in group for row in each.epochs if column in row):
                by_epoch.setdefault(row["epoch"], {}).setdefault(seed, float(row[column]))
            for epoch, values in by_epoch.items():
                chart.add(joint_name(group), float(epoch), *mean_and_sd(list(values.values())))
        if _has_curves(chart):
            return chart
    return None


def accuracy(experiment: Experiment) -> Chart:
    """The kNN accuracy of an experiment by epoch."""
    return _by_epoch("knn", NEIGHBOURS, experiment.epochs)


def information(experiment: Experiment) -> Chart:
    """The lower bound log(1 + alpha) - L on the mutual information of two views by epoch (EqCo, sec. 2.1).

    L is the InfoNCE of MoCo; without margin, alpha is the number of negatives.
    """
    loss, method = experiment.params["loss"], experiment.params["method"]
    limit = math.log1p(loss["alpha"] or method["queue"])
    chart = Chart("information", "Mutual information in training", "epoch", "lower bound, nats")
    for row in experiment.epochs:
        chart.add("bound", float(row["epoch"]), limit - float(row["loss"]) / method["scale"])
    return chart


def _has_curves(chart: Chart) -> bool:
    """Whether a series has several epochs: one would be a lone point."""
    return any(len(points) > 1 for points in chart.series.values())


def drawing(chart: Chart, meaning: str = "") -> dict[str, str | Markup]:
    """A chart in the form that the templates expect."""
    return {"svg": chart.svg(), "title": chart.title, "meaning": meaning}
