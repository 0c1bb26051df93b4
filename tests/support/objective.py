"""Random rows, and the dense forms of the reductions over negatives."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cl.objective.sums import log_complement_sum, probability_sum, softplus_sum

SUMS = {"softplus": softplus_sum, "log_complement": log_complement_sum, "probability": probability_sum}


def l2_normalize(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random unit rows."""
    return F.normalize(torch.randn(*shape, dtype=dtype), dim=-1)


def exclusions(n: int, k: int, e: int) -> Tensor:
    """(n, e): distinct random columns of k for each row."""
    return torch.stack([torch.randperm(k)[:e] for _ in range(n)])


def dense(queries: Tensor, negatives: Tensor, left_out: Tensor | None, temperature: float) -> Tensor:
    """The log-partition with an (N, K) matrix, without the columns of a mask (N, K)."""
    logits = queries @ negatives.T / temperature
    if left_out is not None:
        logits = logits.masked_fill(left_out, -math.inf)
    return logits.logsumexp(1)


def dense_sum(name: str, logits: Tensor, shift: Tensor, counts: Tensor) -> Tensor:
    """(N,): the sum of log(1 + e^x), log(1 - e^x) or e^x over columns that count `counts` times."""
    e = (logits - shift[:, None]).exp()
    written_out = {"softplus": (1 + e).log(), "log_complement": (1 - e).log(), "probability": e}
    return (counts * written_out[name]).sum(1)


def masked(n: int, k: int, columns: Tensor) -> Tensor:
    """(n, k) bool: True at the columns (n, E) of each row."""
    return torch.zeros(n, k, dtype=torch.bool, device=columns.device).scatter(1, columns, True)
