"""The formulas of PyTorch's CUDA kernels for synchronised batch norm, for a CPU.

Importing this module registers them with PyTorch, which has these kernels for CUDA alone; functions such as
`torch.batch_norm_stats` then work, with PyTorch's check of their arguments. They refuse what the CUDA kernels
refuse, or would misread: layouts that differ, and other types.
"""

import torch
from torch import Tensor


def _over(x: Tensor) -> list[int]:
    return [dimension for dimension in range(x.ndim) if dimension != 1]


def _channels(values: Tensor | None, x: Tensor) -> Tensor | float:
    """(C,) to (1, C, 1, ...); 1 for none."""
    return 1.0 if values is None else values.reshape(1, -1, *[1] * (x.ndim - 2))


def _accumulated(x: Tensor) -> torch.dtype:
    """The type of the statistics."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _check_layout(x: Tensor, *others: Tensor) -> None:
    """Dense, and in the same order in memory: the kernels walk along all of them with the strides of one."""
    assert x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)
    for other in others:
        assert other.shape == x.shape
        for size, stride, expected in zip(x.shape, other.stride(), x.stride(), strict=True):
            assert stride == expected or size == 1


def _check_channels(x: Tensor, *values: Tensor | None) -> None:
    for each in values:
        if each is not None:
            assert each.shape == (x.shape[1],)
            assert each.dtype == _accumulated(x)
            assert each.is_contiguous()


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean, and 1 / sqrt(biased variance + eps), of each channel."""
    _check_layout(x)
    values = x.to(_accumulated(x))
    mean = values.mean(_over(x))
    square = (values - _channels(mean, x)).square().mean(_over(x))
    return mean, 1 / (square + eps).sqrt()


def gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The mean and 1 / sqrt(biased variance + eps) of the elements of W ranks, from the (W, C) of each.

    Running statistics move by `momentum` towards the mean and the unbiased variance. `x` gives the type only.
    """
    ranks = len(counts)
    assert mean.shape == invstd.shape == (ranks, x.shape[1])
    assert mean.dtype == invstd.dtype == _accumulated(x)
    assert counts.shape == (ranks,)
    assert counts.dtype == (x if running_mean is None else running_mean).dtype
    assert (counts > 0).all(), "0 / 0"
    n, total = counts[:, None], counts.sum()
    first = (n * mean).sum(0)
    second = (n * (invstd.pow(-2) - eps + mean.square())).sum(0)  # of squares; exact enough in float64
    deviation = second - first.square() / total
    if running_mean is not None and running_var is not None:
        running_mean.mul_(1 - momentum).add_(momentum * first / total)
        running_var.mul_(1 - momentum).add_(momentum * deviation / (total - 1))
    return first / total, 1 / (deviation / total + eps).sqrt()


def elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """(x - mean) invstd weight + bias; `eps` is in `invstd` already."""
    _check_layout(x)
    _check_channels(x, weight, bias, mean, invstd)
    shift = 0.0 if bias is None else _channels(bias, x)
    y = (x - _channels(mean, x)) * _channels(invstd, x) * _channels(weight, x) + shift
    return y.to(x.dtype)


def backward_reduce(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, ...]:
    """Sums over each channel of g and g (x - mean), the gradients of weight and bias; None if unwanted.

    Without a weight, the kernels for rows in channels-last layout return empty gradients instead.
    """
    _check_layout(x, g)
    _check_channels(x, weight, mean, invstd)
    assert g.dtype == x.dtype
    of_g = g.to(mean.dtype).sum(_over(x))
    of_product = (g * (x - _channels(mean, x))).sum(_over(x))
    wanted = (input_g, input_g, weight_g, bias_g)
    values = (of_g, of_product, of_product * invstd, of_g.clone())
    if weight is None and x.stride(1) == 1:
        return of_g, of_product, mean.new_empty(0), mean.new_empty(0)
    return tuple(value if each else None for each, value in zip(wanted, values, strict=True))


def backward_elemt(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of the rows: the Jacobian of (x - mean) invstd weight, where both depend on all elements.

    count: (W,) or (W, 1) int32, elements of each channel on each rank.
    """
    _check_layout(x, g)
    _check_channels(x, weight, mean, invstd, sum_dy, sum_dy_xmu)
    assert count.dtype == torch.int32
    assert count.is_contiguous()
    total = count.sum()
    direct = g - _channels(sum_dy / total, x)
    through_std = (x - _channels(mean, x)) * _channels(invstd.square() * sum_dy_xmu / total, x)
    return ((direct - through_std) * _channels(invstd, x) * _channels(weight, x)).to(x.dtype)


LIBRARY = torch.library.Library("aten", "IMPL", "CPU")  # what it holds is registered as long as it exists
LIBRARY.impl("batch_norm_stats", stats)
LIBRARY.impl("batch_norm_gather_stats_with_counts", gather_stats_with_counts)
LIBRARY.impl("batch_norm_elemt", elemt)
LIBRARY.impl("batch_norm_backward_reduce", backward_reduce)
LIBRARY.impl("batch_norm_backward_elemt", backward_elemt)
