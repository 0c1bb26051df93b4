"""Sums over the negatives of a function of each logit."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from cl.reductions.tiles import Groups, Tile, buffer_of, check_columns, over_selected, tiles_of


def softplus_sum(
    queries: Tensor,
    negatives: Tensor,
    excluded: Tensor | None,
    temperature: float,
    shift: Tensor,
    *,
    selected: Tensor | None = None,
    groups: Groups | None = None,
) -> Tensor:
    """(N,): sum over the negatives that count of softplus(q_i . k / temperature - shift_i).

    The arguments are those of `log_partition`, and `shift` (N,), which may carry a gradient. A query whose
    negatives are all of its own group has the sum 0.
    """
    check_columns(len(negatives), excluded, selected)
    arguments = _SOFTPLUS, queries, negatives, excluded, selected, temperature, shift, groups
    return _sum(*arguments)


def log_complement_sum(
    queries: Tensor,
    negatives: Tensor,
    excluded: Tensor | None,
    temperature: float,
    shift: Tensor,
    *,
    selected: Tensor | None = None,
    groups: Groups | None = None,
) -> Tensor:
    """(N,): sum over the negatives that count of log(1 - exp(q_i . k / temperature - shift_i)).

    With the log-partition over all candidates as `shift`, exp(...) is the probability of a negative. The
    arguments are those of `softplus_sum`; every logit must be smaller than its shift.
    """
    check_columns(len(negatives), excluded, selected)
    arguments = _LOG_COMPLEMENT, queries, negatives, excluded, selected, temperature, shift, groups
    return _sum(*arguments)


class _Pointwise(NamedTuple):
    """A function of a logit minus its shift, for autograd and in place, and its derivative in place."""

    plain: Callable[[Tensor], Tensor]
    value_: Callable[[Tensor], Tensor]
    derivative_: Callable[[Tensor], Tensor]


LINEAR = 40.0  # softplus(x) = x beyond this; beyond PyTorch's 20, it errs by 2e-9
_SOFTPLUS = _Pointwise(
    partial(F.softplus, threshold=LINEAR),
    lambda x: torch.ops.aten.softplus.out(x, 1, LINEAR, out=x),
    torch.sigmoid_,
)
_LOG_COMPLEMENT = _Pointwise(
    lambda x: torch.log1p(-x.exp()),
    lambda x: x.exp_().neg_().log1p_(),
    lambda x: x.neg_().expm1_().neg_().reciprocal_(),  # -e^x / (1 - e^x) = 1 / (1 - e^-x)
)


def _sum(
    function: _Pointwise,
    queries: Tensor,
    negatives: Tensor,
    excluded: Tensor | None,
    selected: Tensor | None,
    temperature: float,
    shift: Tensor,
    groups: Groups | None,
) -> Tensor:
    if selected is None:
        return _PointwiseSum.apply(function, queries, negatives, excluded, temperature, shift, groups)

    def reduce(logits: Tensor, absent: Tensor, rows: Tensor) -> Tensor:
        x = (logits - shift[rows, None]).masked_fill(absent, -1)
        return function.plain(x).masked_fill(absent, 0).sum(1)

    return over_selected(reduce, queries, negatives, selected, temperature, groups)


class _PointwiseSum(Function):
    """Sum over the negatives of a function of each logit minus its query's shift."""

    @staticmethod
    def forward(ctx, function, queries, negatives, excluded, temperature, shift, groups):  # type: ignore[no-untyped-def]
        tiles = tiles_of(len(queries), len(negatives), excluded, groups, queries.device)
        buffer, scaled = buffer_of(queries, negatives), queries / temperature
        total = queries.new_zeros(len(queries))
        for tile in tiles:
            x = function.value_(_shifted(scaled, negatives, shift, tile, buffer))
            total[tile.rows] += tile.fill(x, 0).sum(1)
        ctx.save_for_backward(queries, negatives, shift)
        ctx.function, ctx.tiles, ctx.temperature = function, tiles, temperature
        return total

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, negatives, shift = ctx.saved_tensors
        buffer, scaled = buffer_of(queries, negatives), queries / ctx.temperature
        weighted = queries * (gradient / ctx.temperature)[:, None]
        to_queries = torch.zeros_like(queries) if ctx.needs_input_grad[1] else None
        to_negatives = torch.zeros_like(negatives) if ctx.needs_input_grad[2] else None
        to_shift = torch.zeros_like(shift)
        for tile in ctx.tiles:
            x = ctx.function.derivative_(_shifted(scaled, negatives, shift, tile, buffer))
            tile.fill(x, 0)
            to_shift[tile.rows] -= x.sum(1)
            if to_queries is not None:
                to_queries[tile.rows].addmm_(x, negatives[tile.columns])
            if to_negatives is not None:
                to_negatives[tile.columns].addmm_(x.T, weighted[tile.rows])
        if to_queries is not None:
            to_queries.mul_((gradient / ctx.temperature)[:, None])
        return None, to_queries, to_negatives, None, None, to_shift * gradient, None


def _shifted(scaled: Tensor, negatives: Tensor, shift: Tensor, tile: Tile, buffer: Tensor) -> Tensor:
    """The logits of one block minus their queries' shifts, in `buffer`; -1 where a column does not count."""
    q, k = scaled[tile.rows], negatives[tile.columns]
    x = buffer[: len(q) * len(k)].view(len(q), len(k))
    return tile.fill(torch.addmm(shift[tile.rows, None], q, k.T, beta=-1, out=x), -1)
