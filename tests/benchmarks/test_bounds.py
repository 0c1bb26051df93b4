"""What a step asks of a GPU stays as recorded."""

import pytest

from benchmarks.gpu import bounds

SLOW = ("SimCLR R50 8 x 64", "MoCo v3 R50 8 x 64")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in bounds.CASES]
)
def test_a_step_asks_for_what_was_recorded(name) -> None:
    """If this is meant to change, or PyTorch has: `python -m benchmarks.gpu.bounds --write`."""
    assert bounds.measured(bounds.CASES[name]) == pytest.approx(bounds.recorded()[name], rel=0.05)
