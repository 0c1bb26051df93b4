"""The cost of M' keys per image: JCL's closed form against the vanilla loss (JCL, supplementary, sec. 2).

`python -m benchmarks.key_cost`: time and memory of the loss and its gradient at random unit queries, without
encoding the keys (equal for all). The vanilla loss is the mean of InfoNCE over the keys. As written in the
paper, it is a batch M' times as large. Ours shares one log-partition among the keys of a query, which gives
the same number for less.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import memory
from cl.losses import infonce, jcl
from cl.objective.terms import Contrast
from cl.runtime import machine

QUERIES, NEGATIVES, WIDTH, KEYS, ROUNDS = 256, 16384, 128, (1, 2, 4, 8, 16), 3


def main() -> None:
    device = machine.find("fp32", deterministic=False).device
    torch.manual_seed(0)
    print("keys   loss                     milliseconds   MiB")
    for count in KEYS:
        shapes = (QUERIES,), (QUERIES, count), (NEGATIVES,)
        cases = _cases(*(F.normalize(torch.randn(*shape, WIDTH), dim=-1).to(device) for shape in shapes))
        for label, seconds in _median_seconds(cases, device).items():
            grown = memory.growth(cases[label], device) / 2**20
            print(f"{count:4d}   {label:24} {1000 * seconds:12.1f} {grown:5.0f}", flush=True)


def _cases(queries: Tensor, keys: Tensor, negatives: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Functions that compute the gradient at the queries, by label."""
    plain = infonce.Config(kind="infonce", alpha=None)
    joint = jcl.Config(kind="jcl", strength=1.0, ramp=False, unbiased=False)
    return {
        "vanilla, as written": lambda: gradient(queries, lambda q: vanilla(q, keys, negatives)),
        "vanilla, one partition": lambda: gradient(
            queries, lambda q: infonce.loss(Contrast(q, keys, negatives), plain, 1.0)
        ),
        "JCL": lambda: gradient(queries, lambda q: jcl.loss(Contrast(q, keys, negatives), joint, 1.0)),
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
    contrast = Contrast(repeated, keys.flatten(0, 1)[:, None], negatives)
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


if __name__ == "__main__":
    main()
