"""Sums over the negatives of a function of each logit."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from cl.objective.blocks import Block, Groups, Logits
from cl.objective.columns import check_columns, over_selected
from cl.objective.ring import Sharded, local_rows
from cl.runtime.machine import to_device


def softplus_sum(
    queries: Tensor,
    negatives: Tensor | Sharded,
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
    check_columns(negatives, excluded, selected)
    arguments = _SOFTPLUS, queries, negatives, excluded, selected, temperature, shift, groups
    return _sum(*arguments)


def log_complement_sum(
    queries: Tensor,
    negatives: Tensor | Sharded,
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
    check_columns(negatives, excluded, selected)
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
    negatives: Tensor | Sharded,
    excluded: Tensor | None,
    selected: Tensor | None,
    temperature: float,
    shift: Tensor,
    groups: Groups | None,
) -> Tensor:
    rows, sharded = local_rows(negatives)
    if selected is None:
        if excluded is not None:
            excluded = to_device(excluded, queries.device)
        return _PointwiseSum.apply(function, queries, rows, excluded, temperature, shift, groups, sharded)

    def reduce(logits: Tensor, absent: Tensor, rows: Tensor) -> Tensor:
        x = (logits - shift[rows, None]).masked_fill(absent, -1)
        return function.plain(x).masked_fill(absent, 0).sum(1)

    return over_selected(reduce, queries, rows, selected, temperature, groups)


class _PointwiseSum(Function):
    """Sum over the negatives of a function of each logit minus its query's shift."""

    @staticmethod
    def forward(ctx, function, queries, negatives, excluded, temperature, shift, groups, sharded):  # type: ignore[no-untyped-def]
        ctx.function, ctx.options = function, (excluded, temperature, groups, sharded)
        total = queries.new_zeros(len(queries))
        for block in Logits(queries, negatives, *ctx.options).blocks(shift):
            total[block.rows].add_(_filled(block, function.value_).sum(1))
        ctx.save_for_backward(queries, negatives, shift)
        return total

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, negatives, shift = ctx.saved_tensors
        logits, to_shift = Logits(queries, negatives, *ctx.options), torch.zeros_like(shift)

        def derivative(block: Block) -> Tensor:
            x = _filled(block, ctx.function.derivative_)
            to_shift[block.rows].sub_(x.sum(1))
            return x

        weight, needed = gradient / logits.temperature, ctx.needs_input_grad[1:3]
        gradients = logits.gradients(weight, shift, derivative, needed)
        return None, *gradients, None, None, to_shift * gradient, None, None


def _filled(block: Block, function_: Callable[[Tensor], Tensor]) -> Tensor:
    """The function of one block's logits, in place; 0 where a column does not count."""
    function_(block.fill(-1))
    return block.fill(0)
