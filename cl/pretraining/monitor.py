"""What is measured while a method trains: kNN accuracy on part of the data, and signs of collapse."""

from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.transform import Transform
from cl.features.extraction import Cache, extract
from cl.features.knn import check_k, classify, top1
from cl.pretraining import collapse
from cl.pretraining.task import PretrainingTask
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import mean_over_ranks
from cl.runtime.machine import to_device

EARLY = 0.25  # no alarm in this fraction of the run: untrained encoders map all images to nearly one point


class Config(BaseConfig):
    """kNN on part of the data at the end of every epoch."""

    k: int = Field(gt=0)
    temperature: float = Field(gt=0)
    bank: int = Field(gt=0, description="training images")
    queries: int = Field(gt=1, description="validation images")

    def check(self, train: Reader, val: Reader) -> None:
        """Raises ValueError if the data has too few images, or labels for too few of them."""
        kind = ""
        if train.manifest.classes:
            check_k(self.k, len(train.labelled[: self.bank]))
            kind = "labelled "
        if (found := len(val.evaluated(2))) < 2:
            raise ValueError(
                f"collapse is measured on at least 2 {kind}validation images, found {found}; hold out more"
            )

    def for_few_images(self, train: Reader) -> Self:
        """The same parameters, reduced to what few labelled images allow."""
        labelled = len(train.labelled[: self.bank]) or self.k
        return self.model_copy(update={"k": min(self.k, labelled)})


@torch.no_grad()
def measure_epoch(
    task: PretrainingTask,
    config: Config,
    train: Reader,
    val: Reader,
    *,
    transform: Transform,
    progress: Progress,
    trained: int = 0,
    cache: Cache | None = None,
) -> dict[str, float]:
    """Accuracy of kNN on features and on embeddings, in percent, and signs of collapse.

    Both are measured on part of the labelled images. Without labels, there is no accuracy, and collapse is
    measured on part of the validation images. An alarm goes to `progress`, but not before the verdict at the
    end would count it. `alignment` is the mean over the last batch's positive pairs. `cache` is as in
    `extract`.

    Args:
        trained: the number of epochs that this run has finished.
    """
    chosen = val.evaluated(config.queries)
    backbone, projector = task.method.evaluated
    features = partial(extract, backbone, machine=task.machine, cache=cache)
    queries = features(EvalSet(val, transform, chosen))
    embeddings = F.normalize(projector(queries), dim=1)
    measured: dict[str, float] = {}
    if classes := len(train.manifest.classes):
        bank = EvalSet(train, transform, train.evaluated(config.bank))
        known = train.labels(bank.positions), val.labels(chosen)
        labels, truth = (to_device(torch.from_numpy(each), queries.device) for each in known)
        rows = features(bank)
        for name, network in (("knn_top1", nn.Identity()), ("knn_embedding_top1", projector)):
            found, keys = (F.normalize(network(x), dim=1) for x in (queries, rows))
            predicted = classify(found, keys, labels, classes, k=[config.k], temperature=config.temperature)
            measured[name] = top1(predicted[0], truth)
    measured["alignment"] = float(mean_over_ranks(task.alignment))
    measures = collapse.measures(embeddings)
    if task.has_groups:
        measures["queries_without_negatives"] = task.take_without_negatives()
    sizes = embeddings.shape[1], len(chosen)
    warning = collapse.alarm(measures, *sizes, negatives=bool(task.negatives))
    if warning and trained >= collapse.FEWEST and task.progress > EARLY:
        progress.say(warning)
    return measured | measures
