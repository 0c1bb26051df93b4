"""What is watched while a method trains: nearest neighbours on a part of the data, and signs of collapse."""

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn

from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.features.extraction import extract
from cl.features.knn import classify, top1
from cl.pretraining import collapse
from cl.pretraining.task import PretrainingTask
from cl.runtime.base_config import BaseConfig
from cl.runtime.distributed import mean_over_ranks
from cl.sources import Source

MEMORY = 64 * 2**20  # bytes
EARLY = 0.25  # fraction of the run


class Config(BaseConfig):
    """kNN on a part of the data at the end of every epoch."""

    k: int = Field(gt=0)
    temperature: float = Field(gt=0)
    bank: int = Field(gt=0, description="training images")
    queries: int = Field(gt=0, description="validation images")

    @model_validator(mode="after")
    def _enough(self) -> "Config":
        if self.k > self.bank:
            raise ValueError(f"k={self.k} neighbours cannot come from bank={self.bank} images")
        return self


@torch.no_grad()
def watch(
    task: PretrainingTask, config: Config, train: Reader, val: Reader, source: Source, progress: Progress
) -> dict[str, float]:
    """Accuracy of nearest neighbours by features and by embeddings, in percent, on part of both splits' labelled images.

    Then alignment of the last batch's positive pairs, and of the validation images' embeddings the measures of
    `cl.pretraining.collapse`, whose alarm is told; not of the first steps, when encoders map all images to nearly the same.
    """
    features, labels = [], []
    for reader, count in ((train, config.bank), (val, config.queries)):
        positions = reader.labelled[:count]  # the shards are shuffled: any part is a fair sample
        features.append(extract(task.method.backbone, reader, source, task.machine, positions))
        labels.append(torch.from_numpy(reader.labels[positions]).to(task.machine.device))
    measured = {}
    networks: dict[str, nn.Module] = {"knn_top1": nn.Identity(), "knn_embedding_top1": task.method.projector}
    for name, network in networks.items():
        bank, queries = (F.normalize(network(x), dim=1) for x in features)
        classes = len(train.manifest.classes)
        predicted, _ = classify(
            queries, bank, labels[0], classes, k=[config.k], temperature=[config.temperature], memory=MEMORY
        )
        measured[name] = top1(predicted[0, 0], labels[1])
    measured["alignment"] = float(mean_over_ranks(task.alignment))
    measured |= (found := collapse.measures(queries))  # the embeddings
    if task.has_groups:
        measured["queries_without_negatives"] = task.take_without_negatives()
    if task.progress > EARLY and (warning := collapse.alarm(found, queries.shape[1])):
        progress.say(warning)
    return measured
