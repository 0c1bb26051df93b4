"""Nearest-neighbour accuracy after every epoch of pretraining (DCL, Fig. 4)."""

from typing import ClassVar, Literal

from cl.analyses import AnalysisConfig, AnalysisContext
from cl.report.charts import Chart
from cl.runtime.metric_info import MetricInfo

COLUMNS = {"knn_top1": "backbone's features", "knn_embedding_top1": "projector's embedding"}


class Config(AnalysisConfig):
    """No options: `optim.monitor` determines what was measured."""

    needs_labels: ClassVar = True
    kind: Literal["knn_curve"]

    def numbers(self) -> dict[str, MetricInfo]:
        meaning = "percent, by features, on the monitor's subset of the data"
        return {
            "best": MetricInfo("best kNN top-1", meaning, "higher"),
            "best_epoch": MetricInfo("its epoch", "the epoch with this accuracy"),
        }


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """The best top-1 (percent) of the backbone's features that the monitor recorded, and its epoch."""
    chart = Chart("by_epoch", "kNN during pretraining", "epoch", "kNN top-1, %")
    chart.add_log(context.epochs, COLUMNS)
    chart.save(context.out)
    best = max(context.epochs, key=lambda row: row["knn_top1"])
    return {"best": best["knn_top1"], "best_epoch": best["epoch"]}
