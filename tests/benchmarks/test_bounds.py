"""What a step asks of a GPU stays as recorded."""

import re

import pytest
from click.testing import CliRunner

from benchmarks.gpu import bounds, floor

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


def test_the_bounds_of_a_recipe_with_overrides() -> None:
    arguments = ["dcl/table3_cifar10", "backbone=resnet18_small", "optim.batch_size=8"]
    result = CliRunner().invoke(floor.main, [*arguments, "--gpu", "a100", "--gpus", "2"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("calculated for 2 x a100 in bf16: a bound, not a measurement")
    found = dict(line.split(": ", 1) for line in result.output.splitlines())
    milliseconds, images, rate = (float(x) for x in re.findall(r"\d+\.?\d*", found["step"]))
    assert (images, rate) == (8, pytest.approx(8000 / milliseconds, rel=0.02))
    hours, steps = (float(x) for x in re.findall(r"\d+\.?\d*", found["pretraining"]))
    assert hours == pytest.approx(steps * milliseconds / 3.6e6, rel=0.02)
    assert len(found["largest costs"].split(", ")) == 3
