"""What a step asks of a GPU stays as recorded."""

import pytest

from benchmarks.gpu import bounds

# A small network; tests/methods/test_gpu_operations.py counts the exchanges of several GPUs.
FAST = ("CIFAR R18 256",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in bounds.CASES],
)
def test_a_step_asks_for_what_was_recorded(name) -> None:
    """If this is meant to change, or PyTorch has: `python -m benchmarks.gpu.bounds --write`."""
    found, recorded = bounds.measured(bounds.CASES[name]), bounds.recorded()[name]
    assert found == pytest.approx(recorded, rel=0.05)
    assert found["exchanges"] == recorded["exchanges"]
