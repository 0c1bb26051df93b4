"""Soft targets against loops over queries and rows, in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cl.losses import infonce, soft_targets
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from tests.support.losses import assert_same
from tests.support.objective import l2_normalize

GROUPS, ROW_GROUPS = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 5, 5, 2, 7])
STUDENT = 0.2


@pytest.fixture
def contrast() -> Contrast:
    """Four queries with two keys each against a queue of seven rows, without those of the query's group."""
    torch.manual_seed(0)
    queries, keys, rows = l2_normalize(4, 5).requires_grad_(), l2_normalize(8, 5), l2_normalize(7, 5)
    negatives = Negatives(rows, groups=(GROUPS, ROW_GROUPS))
    return Contrast(queries, keys.view(4, 2, 5), negatives, STUDENT)


def seed_loss(contrast: Contrast, teacher: float) -> Tensor:
    """-sum_j p_j log s_j over the rows that count and the key: softmaxes of the teacher and the student."""
    losses = []
    for i, query in enumerate(contrast.queries):
        rows = [row for j, row in enumerate(contrast.negatives.rows) if ROW_GROUPS[j] != GROUPS[i]]
        for key in contrast.positives[i]:
            queue = [*rows, key]
            targets = torch.stack([(key @ d / teacher).exp() for d in queue])
            students = torch.stack([(query @ d / STUDENT).exp() for d in queue])
            losses.append(-((targets / targets.sum()) * (students / students.sum()).log()).sum())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("teacher", [0.05, 0.7])
def test_value_and_gradient_equal_the_papers_formula(contrast, teacher) -> None:
    config = soft_targets.Config(kind="soft_targets", teacher_temperature=teacher)
    with torch.no_grad():
        without_gradient = soft_targets.loss(contrast, config, 0.0)
    found = soft_targets.loss(contrast, config, 0.0)
    assert torch.equal(without_gradient, found)
    assert_same(found, seed_loss(contrast, teacher), [contrast.queries])


def test_a_certain_teacher_gives_infonce(contrast) -> None:
    config = soft_targets.Config(kind="soft_targets", teacher_temperature=1e-4)
    one = replace(contrast, positives=contrast.positives[:, :1])
    plain = infonce.loss(one, infonce.Config(kind="infonce", alpha=None, positives="each"), 0.0)
    assert_same(soft_targets.loss(one, config, 0.0), plain, [contrast.queries])
