"""The cost of several keys per image: what is timed are the same losses."""

import torch

from benchmarks import key_cost
from tests.support.objective import l2_normalize


def test_both_forms_of_the_vanilla_loss_have_the_same_gradient() -> None:
    written, shared, joint = key_cost.losses(
        l2_normalize(6, 4), l2_normalize(6, 3, 4), l2_normalize(20, 4)
    ).values()
    torch.testing.assert_close(written(), shared())
    assert not torch.allclose(shared(), joint())
