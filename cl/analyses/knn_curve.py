"""Nearest-neighbour accuracy after every epoch of pretraining (DCL, Fig. 4)."""

from typing import ClassVar, Literal

from cl.analyses import AnalysisConfig, Context

COLUMNS = {"knn_top1": "backbone's features", "knn_embedding_top1": "projector's embedding"}


class Config(AnalysisConfig):
    """No options: `optim.monitor` determines what was measured."""

    needs_labels: ClassVar = True
    kind: Literal["knn_curve"]


def analyze(config: Config, context: Context) -> dict[str, float]:
    """The best top-1 (percent) of the backbone's features that the monitor recorded, and its epoch."""
    context.curve("by_epoch", "kNN during pretraining", COLUMNS, "kNN top-1, %").save(context.out)
    best = max(context.epochs, key=lambda row: row["knn_top1"])
    return {"best": best["knn_top1"], "best_epoch": best["epoch"]}
