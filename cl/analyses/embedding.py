"""A two-dimensional map of the validation images (t-SNE, van der Maaten and Hinton 2008)."""

from typing import Literal, Self

import numpy as np
from pydantic import Field

from cl.analyses import AnalysisConfig, AnalysisContext
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.features.extraction import Unit, extract_all
from cl.report.charts import Chart
from cl.runtime.metric_info import MetricInfo


class Config(AnalysisConfig):
    """`images` of the validation split; `of`: the projector's embedding or the backbone's features."""

    kind: Literal["embedding"]
    images: int = Field(gt=2)
    of: Literal["embedding", "backbone"]
    perplexity: float = Field(gt=0)

    def check(self, train: Reader, val: Reader) -> None:
        if len(val) < 3:
            raise ValueError(f"a map needs 3 validation images, found {len(val)}; leave out this analysis")

    def for_few_images(self, train: Reader, val: Reader) -> Self:
        most = (min(self.images, len(val)) - 1) / 3
        return self.model_copy(update={"perplexity": min(self.perplexity, most)})

    def numbers(self) -> dict[str, MetricInfo]:
        meaning = "percent: how far neighbours in the map are also neighbours in the features"
        return {"trustworthiness": MetricInfo("trustworthiness of the map", meaning, "higher")}


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """Trustworthiness of the map in percent (Venna and Kaski 2001): are its neighbours close in features?"""
    from sklearn.manifold import TSNE, trustworthiness  # slow to import

    positions = context.val.part(len(context.val), config.images)
    backbone, projector = context.method.evaluated
    encoder = Unit(context.backbone, []) if config.of == "backbone" else Unit(backbone, [projector])
    images = EvalSet(context.val, context.transform, positions)
    rows = extract_all(encoder, images, context.machine)[-1].cpu().numpy()
    points = TSNE(perplexity=config.perplexity, init="pca", random_state=context.seed).fit_transform(rows)
    labels = context.val.labels(positions)
    title = f"{len(rows)} validation images by {config.of}, t-SNE"
    chart = Chart("map", title, "first axis", "second axis", "points")
    for label in np.unique(labels):
        name = context.val.manifest.classes[label] if label >= 0 else "images"
        for x, y in points[labels == label]:
            chart.add(name, x, y)
    chart.save(context.out)
    neighbours = min(5, (len(rows) - 1) // 2)
    return {"trustworthiness": 100 * float(trustworthiness(rows, points, n_neighbors=neighbours))}
