"""Barlow Twins and VICReg against loops written from their papers."""

import pytest
import torch
from torch import Tensor

from cl.methods import BaseMethod
from tests.support.loops import assert_equals_the_loop, projections
from tests.support.methods import batch_of, build, loss_config, task_of, views


def statistics(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and biased variance of every column, one number at a time."""
    means = [sum(row[j] for row in x) / len(x) for j in range(x.shape[1])]
    variances = [sum((row[j] - means[j]) ** 2 for row in x) / len(x) for j in range(x.shape[1])]
    return means, variances


def barlow_twins(a: Tensor, b: Tensor, redundancy: float = 0.0051) -> Tensor:
    """Batch norm without affine on each, C = a'b / N, sum (C_ii - 1)^2 + lambda sum C_ij^2."""
    (mean_a, var_a), (mean_b, var_b) = statistics(a), statistics(b)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            c = sum(
                (p[i] - mean_a[i]) / (var_a[i] + 1e-5) ** 0.5 * (q[j] - mean_b[j]) / (var_b[j] + 1e-5) ** 0.5
                for p, q in zip(a, b, strict=True)
            ) / len(a)
            total = total + ((c - 1) ** 2 if i == j else redundancy * c**2)
    return total


def vicreg(a: Tensor, b: Tensor) -> Tensor:
    """25 mean (a - b)^2 + 25 mean hinge / 2 of both + sum of squared covariances / D of both."""
    n, d = a.shape
    total = 25 * sum((p[j] - q[j]) ** 2 for p, q in zip(a, b, strict=True) for j in range(d)) / (n * d)
    for x in (a, b):
        means, variances = statistics(x)
        for i in range(d):
            deviation = (variances[i] * n / (n - 1) + 1e-4) ** 0.5
            if deviation < 1:
                total = total + 25 / 2 * (1 - deviation) / d
            for j in range(d):
                if i != j:
                    covariance = sum((row[i] - means[i]) * (row[j] - means[j]) for row in x) / (n - 1)
                    total = total + covariance**2 / d
    return total


LOSSES = {"barlow_twins": barlow_twins, "vicreg": vicreg}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sizes", [(12, 12), (12, 12, 8, 8)])
def test_the_method_equals_its_loop(name, sizes) -> None:
    """The mean over the pair of large views, and over each small view with each large one."""

    def loop(method: BaseMethod, inputs: list[Tensor]) -> Tensor:
        z = projections(method, inputs, separate=2)
        pairs = [(b, a) for b in (0, 1) for a in range(len(z)) if a > b]
        assert len(pairs) == {2: 1, 4: 5}[len(z)]
        return torch.stack([LOSSES[name](z[b], z[a]) for b, a in pairs]).mean()

    assert_equals_the_loop(build("two_views"), loop, sizes, loss=name)


@pytest.mark.parametrize("name", LOSSES)
def test_projections_are_in_float32_under_autocast(name) -> None:
    method = build("two_views").float()
    batch = batch_of([view.float() for view in views(4)])
    with torch.autocast("cpu", torch.bfloat16):
        (term,) = method(batch)
    assert term.first.dtype == term.second.dtype == torch.float32
    assert torch.isfinite(task_of(method, loss_config(name))(batch))
