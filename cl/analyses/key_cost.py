"""What M' keys an image cost: JCL's closed form against the vanilla loss over the keys (JCL, supplementary, sec. 2)."""

import time
from collections.abc import Callable
from statistics import median
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cl.analyses import Context
from cl.charts import Chart
from cl.contrast import Contrast
from cl.losses import infonce, jcl
from cl.runtime import memory
from cl.runtime.base_config import BaseConfig

ROUNDS = 3


class Config(BaseConfig):
    """Random unit vectors: `queries` with M' in `keys` against `negatives`, of `width` numbers."""

    kind: Literal["key_cost"]
    queries: int = Field(gt=1)
    negatives: int = Field(gt=0)
    width: int = Field(gt=0)
    keys: list[int] = Field(min_length=1)


def analyze(config: Config, context: Context) -> dict[str, float]:
    """Seconds and memory of the loss with its gradient, by M'; encoding the keys costs all three the same, and is left out.

    The vanilla loss is the mean of InfoNCE over the keys. As the paper writes it, it is a batch M' times as large. Ours has
    one log-partition for all keys of a query, which is the same number for less.

    Returns:
        The seconds of each with the most keys over those of JCL with the fewest.
    """
    charts = (
        Chart("seconds", "Time of the loss and its gradient", "keys an image", "milliseconds"),
        Chart("memory", "Memory of the loss and its gradient", "keys an image", "MiB"),
    )
    device = context.machine.device
    generator = torch.Generator().manual_seed(context.seed)
    for count in sorted(config.keys):
        sizes = ((config.queries,), (config.queries, count), (config.negatives,))
        tensors = [
            F.normalize(torch.randn(*size, config.width, generator=generator), dim=-1).to(device)
            for size in sizes
        ]
        cases = _cases(*tensors)
        for case in cases.values():
            case()  # a device's first call takes longer
        seconds: dict[str, list[float]] = {label: [] for label in cases}
        for _ in range(ROUNDS):  # in turns, as a machine's speed drifts
            for label, case in cases.items():
                seconds[label].append(_seconds(case, device))
        for label, case in cases.items():
            charts[0].add(label, count, 1000 * median(seconds[label]))
            charts[1].add(label, count, memory.growth(case, device) / 2**20)
    for chart in charts:
        chart.save(context.out)
    last = [points[-1].y for points in charts[0].series.values()]
    return {
        name: value / charts[0].series["JCL"][0].y
        for name, value in zip(("vanilla", "shared", "jcl"), last, strict=True)
    }


def _cases(queries: Tensor, keys: Tensor, negatives: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Each makes the gradient at the queries."""
    plain = infonce.Config(kind="infonce", alpha=None)
    joint = jcl.Config(kind="jcl", strength=1.0, ramp=False, unbiased=False)
    return {
        "vanilla, as written": lambda: gradient(queries, lambda q: vanilla(q, keys, negatives)),
        "vanilla, one partition": lambda: gradient(
            queries, lambda q: infonce.loss(Contrast(q, keys, negatives), plain, 1.0)
        ),
        "JCL": lambda: gradient(queries, lambda q: jcl.loss(Contrast(q, keys, negatives), joint, 1.0)),
    }


def vanilla(queries: Tensor, keys: Tensor, negatives: Tensor) -> Tensor:
    """Mean of InfoNCE over a batch of N M' pairs of a query (N, D) and one of its keys (N, M', D)."""
    repeated = queries.repeat_interleave(keys.shape[1], 0)
    contrast = Contrast(repeated, keys.flatten(0, 1)[:, None], negatives)
    return infonce.loss(contrast, infonce.Config(kind="infonce", alpha=None), 1.0)


def gradient(queries: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """dL/dq of a loss of the queries."""
    leaf = queries.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf), leaf)
    return found


def _seconds(case: Callable[[], Tensor], device: torch.device) -> float:
    began = time.perf_counter()
    case()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
