"""What a method hands to a loss."""

import pytest
import torch
from torch import Tensor

from cl.objective.negatives import Negatives
from cl.objective.terms import Agreement, Contrast, TwoViews
from cl.runtime.registry import kinds, module_of
from tests.support.methods import loss_config
from tests.support.objective import l2_normalize

GROUPS = torch.tensor([0, 1, 1, 2, 5, 0]), torch.tensor([0, 0, 1, 3, 3, 4, 1, 6, 4, 2, 0])
LONELY = 3  # a query that is left without negatives


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_negatives_are_counted_for_each_query() -> None:
    queries, rows = l2_normalize(6, 4), l2_normalize(11, 4)
    columns = torch.stack([torch.randperm(11)[:4] for _ in range(6)])
    for way in (None, "excluded", "selected"):
        for groups in (None, GROUPS):
            counted = torch.ones(6, 11, dtype=torch.bool)
            if way:
                counted = torch.full((6, 11), way == "excluded").scatter(1, columns, way == "selected")
            if groups:
                counted &= groups[0][:, None] != groups[1]
            negatives = Negatives(rows, **({way: columns} if way else {}), groups=groups)
            assert negatives.counts(queries).tolist() == counted.sum(1).tolist()


def test_a_batch_mean_is_over_the_queries() -> None:
    queries = l2_normalize(3, 4)
    contrast = Contrast(queries, queries[:, None], Negatives(l2_normalize(5, 4)))
    assert contrast.batch_mean(torch.tensor([[1.0], [2.0], [6.0]])) == 3
    some, _ = grouped(1)
    values = torch.randn(6, 1, dtype=torch.float64)
    torch.testing.assert_close(some.batch_mean(values), values[REST].mean(0), msg="of those with negatives")
    same = torch.zeros(5, dtype=torch.int64)
    alone = Contrast(queries, queries[:, None], Negatives(l2_normalize(5, 4), groups=(same[:3], same)))
    assert alone.batch_mean(torch.tensor([[1.0], [2.0], [6.0]])) == 1, "no query has negatives"


def grouped(positives: int) -> tuple[Contrast, Tensor]:
    """Six queries with sampled negatives, one of which samples only its own group; what counts (6, 11)."""
    query_groups, row_groups = GROUPS[0].clone(), GROUPS[1]
    query_groups[LONELY] = 3
    columns = torch.tensor([[2, 3, 4], [0, 2, 3], [1, 5, 7], [3, 4, 4], [0, 5, 9], [0, 3, 6]])
    counted = torch.zeros(6, 11, dtype=torch.bool).scatter(1, columns, True)
    counted &= query_groups[:, None] != row_groups
    shapes = (6, 5), (6, positives, 5), (11, 5)
    queries, keys, rows = (l2_normalize(*shape).requires_grad_() for shape in shapes)
    contrast = Contrast(
        queries,
        keys,
        Negatives(rows, selected=columns, groups=(query_groups, row_groups)),
        temperature=0.2,
        log_normalizer=torch.tensor(0.3, dtype=torch.float64),
    )
    return contrast, counted


LOSSES = [kind for kind in kinds("losses") if "contrasts" in module_of("losses", kind).Config.needs]
REST = [i for i in range(6) if i != LONELY]


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_leaves_out_queries_without_negatives(kind) -> None:
    """It is the mean of the losses of the other queries by themselves, each against what counts for it."""
    module, config = module_of("losses", kind), loss_config(kind)
    contrast, counted = grouped(3 if "several positives" in config.needs else 1)
    assert (~contrast.has_negatives()).nonzero().flatten().tolist() == [LONELY]
    assert int(contrast.queries_without_negatives()) == 1
    ours = module.loss(contrast, config, 0.5)
    q, p, k = contrast.queries, contrast.positives, contrast.negatives.rows
    settings = {"temperature": 0.2, "log_normalizer": contrast.log_normalizer}
    alone = [Contrast(q[[i]], p[[i]], Negatives(k[counted[i]]), **settings) for i in REST]
    if kind != "dclw":  # its weights are those of the whole batch
        losses = torch.stack([module.loss(one, config, 0.5) for one in alone])
        torch.testing.assert_close(ours, losses.mean())
    gradient = torch.autograd.grad(ours, (q, p, k))
    assert all(x.isfinite().all() for x in gradient)
    assert torch.equal(gradient[0][LONELY], torch.zeros(5, dtype=torch.float64))
    assert gradient[0][REST].abs().sum() > 0


def test_distances_are_of_the_positive_pairs() -> None:
    first, second = l2_normalize(6, 5), l2_normalize(6, 5)
    expected = (first - second).square().sum(1)[:, None]
    terms = [
        Contrast(first, second[:, None], Negatives(l2_normalize(3, 5)), 0.2),
        Agreement(first, second[:, None]),
        TwoViews(3 * first, 2 * second),
    ]
    for term in terms:
        torch.testing.assert_close(term.squared_distances(), expected)
        assert term.weight == 1
        torch.testing.assert_close(term.queries, first)
        torch.testing.assert_close(term.positives[:, 0], second)
    for length, unit in ((2, False), (0.5, True)):
        other = Contrast(
            length * first, length * second[:, None], Negatives(l2_normalize(3, 5), unit=unit), 0.2
        )
        torch.testing.assert_close(other.squared_distances(), expected)
