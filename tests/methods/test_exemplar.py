"""Exemplar against a dense classifier over all images of the training split."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.networks.queue import NO_GROUP
from cl.objective.batch import Batch
from tests.support.loops import assert_same_gradients, cross_entropy, normal, projections
from tests.support.methods import IMAGES, TAU, build, mean_loss, views

POSITIONS = torch.tensor([90, 3, 41, 0, 95])


def batch_at(positions: Tensor, inputs: list[Tensor], groups: Tensor | None = None) -> Batch:
    return Batch(inputs, torch.zeros(len(positions), dtype=torch.int64), positions, groups)


def loop(method, inputs, positions, known=None):  # type: ignore[no-untyped-def]
    """Cross-entropy of each view's logits W z / tau with the image's position, class by class.

    known: the group of each image of the split, -1 where unknown; those of a query's own group are left out.
    """
    losses = []
    for view in projections(method, inputs):
        for z, position in zip(normal(view), positions.tolist(), strict=True):
            logits = [weight @ z / TAU for weight in method.weights]
            others = [j for j in range(IMAGES) if j != position]
            if known is not None and known[position] >= 0:
                others = [j for j in others if known[j] != known[position]]
            losses.append(cross_entropy(logits[position], [logits[j] for j in others]))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("sizes", [(12,), (12, 12), (12, 12, 8)])
def test_it_equals_a_dense_classifier(sizes) -> None:
    method = build("exemplar")
    inputs = views(5, sizes=sizes)
    ours = mean_loss(method, batch_at(POSITIONS, inputs))
    assert_same_gradients(method, ours, loop(method, inputs, POSITIONS))


def test_long_rows_of_the_classifier_do_not_overflow() -> None:
    """Logits of thousands."""
    method = build("exemplar")
    with torch.no_grad():
        method.weights.mul_(torch.linspace(0.1, 900, IMAGES)[:, None])
    inputs = views(5, sizes=(12,))
    z = normal(method.projector(method.backbone(inputs[0])))
    expected = F.cross_entropy(z @ method.weights.T / TAU, POSITIONS)
    torch.testing.assert_close(mean_loss(method, batch_at(POSITIONS, inputs)), expected, rtol=1e-12, atol=0)


def test_an_image_is_no_negative_of_its_group_once_it_was_in_a_batch() -> None:
    """Two steps: in the second, groups of the first are known, those of other images are not yet."""
    method = build("exemplar")
    known = [-1] * IMAGES
    for step, (positions, groups) in enumerate(
        [(POSITIONS, [0, 1, 0, -1, 2]), (torch.tensor([7, 8, 9, 3, 10]), [0, 2, 5, 1, -1])]
    ):
        for position, group in zip(positions.tolist(), groups, strict=True):
            known[position] = group
        inputs = views(5, seed=step)
        ours = mean_loss(method, batch_at(positions, inputs, torch.tensor(groups)))
        assert_same_gradients(method, ours, loop(method, inputs, positions, known))
    assert int((method.groups != NO_GROUP).sum()) == 9
