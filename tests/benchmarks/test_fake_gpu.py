"""Simulated GPUs: the operations that a step starts, their bytes and arithmetic, memory in use, and waits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu.roofline.backward import backward
from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl.runtime.machine import to_device


class Scaled(Function):
    """x times y times a number; gradients to x and y."""

    @staticmethod
    def forward(ctx, x, factor, y):
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return factor * x * y, x.sum()

    @staticmethod
    def backward(ctx, gradient, _):
        x, y = ctx.saved_tensors
        return (ctx.factor * gradient * y).double(), None, ctx.factor * gradient * x


def loss_of(x: Tensor, weight: Tensor, bias: Tensor, turned: Tensor, unused: Tensor) -> Tensor:
    """Branches, a shared parameter, broadcasts, types, layouts, several outputs, recomputation, Python."""
    y = x @ weight + bias
    first, second, _ = y.double().chunk(3, 1)
    z = checkpoint(torch.sin, y, use_reentrant=False)
    scaled, _ = Scaled.apply(z, 3.0, F.relu(y))
    return (
        (scaled @ weight.T).sum()
        + (turned.T.clone() * torch.arange(6.0).view(3, 2)).sum()
        + (first * second).sum().float()
        + bias.square().mean()
        + 0 * unused.detach()
    )


def test_backward_gives_pytorchs_gradients() -> None:
    rng = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=rng) for shape in ((4, 6), (6, 6), (6,), (2, 3), ())]
    found = []
    for form in (backward, Tensor.backward):
        leaves = [x.clone().requires_grad_() for x in values]
        for _ in range(2):  # the second adds
            form(loss_of(*leaves))
        found.append([x.grad for x in leaves])
    assert found[0][-1] is None
    for ours, theirs in zip(found[0][:-1], found[1][:-1], strict=True):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
    torch.testing.assert_close(found[0][:-1], found[1][:-1], rtol=1e-6, atol=1e-6)


def test_waits_are_refused() -> None:
    """What the CPU asks for, and copies that are not asynchronous."""
    with FakeGpu() as gpu:
        x, host = torch.empty(3, device=GPU), torch.arange(3)
        assert x.sum().item() == 1
        assert bool(torch.equal(x, x))
        assert x.cpu().tolist() == [1, 1, 1]
        assert gpu.waits == 3
        gpu.clear()
        gpu.may_wait = False
        assert (x + to_device(host, GPU)).device == GPU
        x.copy_(host.pin_memory(), non_blocking=True)
        assert gpu.waits == 0
        assert (host + 1).tolist() == [1, 2, 3]
        for wait in (
            lambda: x.sum().item(),
            lambda: x.tolist(),
            lambda: x.cpu(),
            lambda: torch.equal(x, x),
            lambda: host.to(GPU),
            lambda: host.pin_memory().to(GPU),
            lambda: x.copy_(host.pin_memory()),
            lambda: torch.tensor([1.0, 2.0], device=GPU),
            lambda: x[host],
            lambda: bool(x.isnan().any()),
        ):
            with pytest.raises(AssertionError, match="the CPU waits for the GPU"):
                wait()
    for function in (torch.Tensor.nonzero, lambda x: x[x > 0]):
        with pytest.raises(Exception, match=r"nonzero"), gpu:
            function(torch.empty(3, device=GPU))


def test_tensors_of_the_cpu_do_not_meet_those_of_the_gpu() -> None:
    with FakeGpu(), pytest.raises(RuntimeError, match="device"):
        torch.empty(3, device=GPU) + torch.empty(3)
