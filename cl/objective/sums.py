"""Sums over the negatives of a function of each logit."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from cl.objective.blocks import Block, blockwise, over_selected
from cl.objective.negatives import Negatives, with_fixed_temperature


class _Pointwise(NamedTuple):
    """A function of a logit minus its shift, and its derivative; names with `_` work in place."""

    value: Callable[[Tensor], Tensor]
    value_: Callable[[Tensor], Tensor]
    derivative_: Callable[[Tensor], Tensor]


LINEAR = 40.0  # above this, softplus(x) = x; PyTorch's default of 20 would cause an error of 2e-9
_SOFTPLUS = _Pointwise(
    partial(F.softplus, threshold=LINEAR),
    lambda x: torch.ops.aten.softplus.out(x, 1, LINEAR, out=x),
    torch.sigmoid_,
)
LARGEST = 0.75  # more than half, so only one candidate can be more probable, whatever is rounded


def _negated_(x: Tensor) -> Tensor:
    """-x in place, or infinity where e^x > LARGEST."""
    return F.threshold(x.neg_(), -math.log(LARGEST), math.inf, inplace=True)


_LOG_COMPLEMENT = _Pointwise(
    lambda x: torch.log1p(-_negated_(x).neg().exp()),
    lambda x: _negated_(x).neg_().exp_().neg_().log1p_(),
    lambda x: _negated_(x).expm1_().neg_().reciprocal_(),  # -e^x / (1 - e^x) = 1 / (1 - e^-x)
)
_PROBABILITY = _Pointwise(
    lambda x: _negated_(x).neg().exp(),
    lambda x: _negated_(x).neg_().exp_(),
    lambda x: _negated_(x).neg_().exp_(),
)


def _sum(
    function: _Pointwise, queries: Tensor, negatives: Negatives, temperature: float | Tensor, shift: Tensor
) -> Tensor:
    """(N,): sum over the negatives that count of the function of q_i . k / temperature - shift_i.

    A query (of N, D) without negatives has the sum 0. The temperature, a number or a scalar tensor, and
    `shift`, (N,), may carry a gradient.
    """
    queries, negatives, temperature = with_fixed_temperature(queries, negatives, temperature)
    if negatives.selected is None:
        logits_of = blockwise(negatives, temperature, queries.device)
        return _PointwiseSum.apply(queries, negatives.rows, shift, logits_of, function)

    def reduce(logits: Tensor, absent: Tensor, numbers: Tensor) -> Tensor:
        x = (logits - shift[numbers, None]).masked_fill(absent, -1)
        return function.value(x).masked_fill(absent, 0).sum(1)

    return over_selected(reduce, queries, negatives, temperature)


softplus_sum = partial(_sum, _SOFTPLUS)
# Of log(1 - p) and of p, with p = exp(logit - shift) and `shift` the log-partition over all candidates.
# Negatives with p > LARGEST are left out: rounding errors would decide their 1 - p.
log_complement_sum, probability_sum = partial(_sum, _LOG_COMPLEMENT), partial(_sum, _PROBABILITY)


class _PointwiseSum(Function):
    """Sum over the negatives of a function of each logit minus its query's shift."""

    @staticmethod
    def forward(ctx, queries, rows, shift, logits_of, function):  # type: ignore[no-untyped-def]
        total = queries.new_zeros(len(queries))
        for block in logits_of(queries, rows).blocks(shift):
            total[block.rows].add_(_filled(block, function.value_).sum(1))
        ctx.logits_of, ctx.function = logits_of, function
        ctx.save_for_backward(queries, rows, shift)
        return total

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, rows, shift = ctx.saved_tensors
        logits, to_shift = ctx.logits_of(queries, rows), torch.zeros_like(shift)

        def derivative(block: Block) -> Tensor:
            x = _filled(block, ctx.function.derivative_)
            to_shift[block.rows].sub_(x.sum(1))
            return x

        weight = gradient / logits.temperature
        gradients = logits.gradients(weight, shift, derivative, ctx.needs_input_grad[:2])
        return *gradients, to_shift * gradient, None, None


def _filled(block: Block, function_: Callable[[Tensor], Tensor]) -> Tensor:
    """The function of one block's logits, in place; 0 where a column does not count."""
    function_(block.fill(-1))
    return block.fill(0)
