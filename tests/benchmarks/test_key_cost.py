"""The cost of several keys per image: what is timed are the same losses."""

import pytest
import torch

from benchmarks import key_cost
from tests.support.objective import l2_normalize


def test_both_forms_of_the_vanilla_loss_have_the_same_gradient() -> None:
    written, shared, joint = key_cost.losses(
        l2_normalize(6, 4), l2_normalize(6, 3, 4), l2_normalize(20, 4)
    ).values()
    torch.testing.assert_close(written(), shared())
    assert not torch.allclose(shared(), joint())


@pytest.mark.slow
@pytest.mark.parametrize("keys", key_cost.STEP_KEYS)
def test_steps_of_both_forms_have_the_same_loss(keys) -> None:
    torch.manual_seed(0)
    steps = key_cost.steps(4, keys, torch.device("cpu"), "backbone.width=0.125", "method.queue=24")
    written, shared, joint = (step() for step in steps.values())
    assert written == pytest.approx(shared, rel=1e-5)
    assert joint != pytest.approx(shared, rel=1e-4)  # untrained encoders hardly tell views apart
