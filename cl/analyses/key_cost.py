"""The cost of M' keys per image: JCL's closed form against the vanilla loss (JCL, supplementary, sec. 2)."""

import time
from collections.abc import Callable
from statistics import median
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.analyses import AnalysisConfig, Context
from cl.losses import infonce, jcl
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.report.charts import Chart
from cl.runtime import memory
from cl.runtime.metric_info import MetricInfo

ROUNDS = 3


class Config(AnalysisConfig):
    """Random unit vectors of `width` numbers: `queries` with M' in `keys` against `negatives`."""

    kind: Literal["key_cost"]
    queries: int = Field(gt=1)
    negatives: int = Field(gt=0)
    width: int = Field(gt=0)
    keys: list[int] = Field(min_length=1)

    def numbers(self) -> dict[str, MetricInfo]:
        meaning = f"its time with {max(self.keys)} keys / that of JCL with {min(self.keys)}"
        titles = {
            "vanilla": "vanilla loss, as written",
            "shared": "vanilla loss, one partition",
            "jcl": "JCL",
        }
        return {name: MetricInfo(title, meaning, "lower") for name, title in titles.items()}


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Time and memory of the loss and its gradient, by M', without encoding the keys (equal for all).

    The vanilla loss is the mean of InfoNCE over the keys. As written in the paper, it is a batch M' times as
    large. Ours shares one log-partition among the keys of a query, which gives the same number for less.

    Returns:
        The time of each variant with the most keys, divided by that of JCL with the fewest.
    """
    time_chart = Chart("seconds", "Time of the loss and its gradient", "keys per image", "milliseconds")
    memory_chart = Chart("memory", "Memory of the loss and its gradient", "keys per image", "MiB")
    device = context.machine.device
    generator = torch.Generator().manual_seed(context.seed)
    for count in sorted(config.keys):
        cases = _cases(*_random_vectors(config, count, generator, device))
        for label, seconds in _median_seconds(cases, device).items():
            time_chart.add(label, count, 1000 * seconds)
        for label, case in cases.items():
            memory_chart.add(label, count, memory.growth(case, device) / 2**20)
    time_chart.save(context.out)
    memory_chart.save(context.out)
    last = [points[-1].y for points in time_chart.series.values()]
    fewest = time_chart.series["JCL"][0].y
    return {name: value / fewest for name, value in zip(("vanilla", "shared", "jcl"), last, strict=True)}


def _random_vectors(
    config: Config, keys: int, generator: torch.Generator, device: torch.device
) -> list[Tensor]:
    """Unit queries (N, D), keys (N, M', D) and negatives (K, D)."""
    shapes = ((config.queries,), (config.queries, keys), (config.negatives,))
    rows = [torch.randn(*shape, config.width, generator=generator) for shape in shapes]
    return [F.normalize(x, dim=-1).to(device) for x in rows]


def _cases(queries: Tensor, keys: Tensor, negatives: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Functions that compute the gradient at the queries, by label."""
    plain = infonce.Config(kind="infonce", alpha=None)
    joint = jcl.Config(kind="jcl", strength=1.0, ramp=False, unbiased=False)
    return {
        "vanilla, as written": lambda: gradient(queries, lambda q: vanilla(q, keys, negatives)),
        "vanilla, one partition": lambda: gradient(
            queries, lambda q: infonce.loss(Contrast(q, keys, Negatives(negatives)), plain, 1.0)
        ),
        "JCL": lambda: gradient(
            queries, lambda q: jcl.loss(Contrast(q, keys, Negatives(negatives)), joint, 1.0)
        ),
    }


def _median_seconds(cases: dict[str, Callable[[], Tensor]], device: torch.device) -> dict[str, float]:
    for case in cases.values():
        case()  # a device's first call takes longer
    seconds: dict[str, list[float]] = {label: [] for label in cases}
    for _ in range(ROUNDS):  # in turns, because a machine's speed drifts
        for label, case in cases.items():
            seconds[label].append(_seconds(case, device))
    return {label: median(values) for label, values in seconds.items()}


def vanilla(queries: Tensor, keys: Tensor, negatives: Tensor) -> Tensor:
    """Mean of InfoNCE over the N M' pairs of a query (N, D) and one of its keys (N, M', D)."""
    repeated = queries.repeat_interleave(keys.shape[1], 0)
    contrast = Contrast(repeated, keys.flatten(0, 1)[:, None], Negatives(negatives))
    return infonce.loss(contrast, infonce.Config(kind="infonce", alpha=None), 1.0)


def gradient(queries: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """dL/dq of a loss of the queries."""
    leaf = queries.clone().requires_grad_()
    (result,) = torch.autograd.grad(loss(leaf), leaf)
    return result


def _seconds(case: Callable[[], Tensor], device: torch.device) -> float:
    began = time.perf_counter()
    case()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
