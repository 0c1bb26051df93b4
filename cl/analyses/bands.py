"""Histograms of the bands, or of red, green and blue, in training images."""

from typing import Literal

import numpy as np
from pydantic import Field

from cl.analyses import AnalysisConfig, AnalysisContext
from cl.report.charts import histogram
from cl.runtime.metric_info import MetricInfo

PIXELS = 2000  # of an image
SPAN = 0.5, 99.5  # percentiles between which values are drawn


class Config(AnalysisConfig):
    """images: the largest number of images to read."""

    kind: Literal["bands"]
    images: int = Field(gt=0)

    def numbers(self) -> dict[str, MetricInfo]:
        return {"missing": MetricInfo("without data", "percentage of values without data, over all bands")}


def analyze(config: Config, context: AnalysisContext) -> dict[str, float]:
    """A histogram of each band's values, minus the band's mean, in its deviations."""
    reader, transform = context.train, context.transform
    names = transform.bands.names if transform.bands else ("red", "green", "blue")
    sampled = []
    for position in np.linspace(0, len(reader) - 1, min(config.images, len(reader))).astype(int):
        pixels = reader.pixels(int(position)).reshape(-1, len(names))
        rng = np.random.default_rng(position)
        drawn = rng.choice(len(pixels), min(PIXELS, len(pixels)), replace=False)
        sampled.append(transform.in_deviations(pixels[drawn]))
    values = np.concatenate(sampled)  # (n, C)
    known = np.isfinite(values)
    if known.any():
        series = {name: column[np.isfinite(column)] for name, column in zip(names, values.T, strict=True)}
        title, span = "deviations from the band's mean", np.percentile(values[known], SPAN)
        histogram("bands", "Values of each band", title, series, tuple(span)).save(context.out)
    return {"missing": 100 * float(1 - known.mean())}
