"""Simulated GPUs: what makes the CPU wait for them is refused."""

import pytest
import torch

from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl.runtime.machine import to_device


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
