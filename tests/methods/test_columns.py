"""Other images of a value as positives, and negatives of one value: loops written from the formulas."""

import pytest
import torch
from torch import Tensor

from cl.losses import LossConfig
from cl.methods import BaseMethod
from cl.networks.queue import NO_GROUP
from cl.objective.batch import Batch
from cl.objective.terms import Contrast
from cl.runtime.registry import module_of
from tests.support.loops import assert_same_gradients
from tests.support.methods import TAU, build, loss_config, training_batch, with_columns

N, K = 6, 3
CASES = [
    ("simclr", {}),
    ("simclr", {"pool": "other_view"}),
    ("moco", {}),
    ("moco", {"keys": "rest"}),
    ("moco", {"symmetric": True}),
    ("simo", {}),
]
LOSSES = [
    loss_config("infonce", alpha=None),
    loss_config("infonce", alpha=50),
    loss_config("infonce", alpha=50, positives="out"),
    loss_config("dcl"),
    loss_config("dclw", detach_weight=False),
    loss_config("jcl", ramp=False),
]
Query = tuple[Tensor, list[Tensor], list[Tensor]]  # q (D,), its positives, its negatives


def loss_of(config: LossConfig, query: Query, weights: list[Tensor]) -> Tensor:
    """L of one query; `weights` of its positives, for `dclw`."""
    q, positives, negatives = query
    s = torch.stack([q @ p / TAU for p in positives])
    total = torch.stack([(q @ k / TAU).exp() for k in negatives]).sum()
    if config.kind in ("dcl", "dclw"):
        return (total.log() - torch.stack(weights) * s).mean()
    if config.kind == "jcl":
        return ((s.mean() + config.strength / 2 * s.var(correction=0)).exp() + total).log() - s.mean()
    if config.alpha:
        total = total * config.alpha / len(negatives)
    inside = s.exp().sum() if config.positives == "out" else s.exp()
    return ((inside + total).log() - s).mean()


def weights_of(config: LossConfig, queries: list[list[tuple[int, Tensor]]]) -> list[list[Tensor]]:
    """The weight of each positive, given as (its column, its cosine); 1 for other losses than `dclw`."""
    if config.kind != "dclw":
        return [[torch.ones(()).double() for _ in own] for own in queries]
    e = [[(column, (cosine / config.sigma).exp()) for column, cosine in own] for own in queries]
    means = {
        column: torch.stack([x for own in e for other, x in own if other == column]).mean()
        for column in {column for own in e for column, _ in own}
    }
    return [[2 - x / means[column] for column, x in own] for own in e]


def looped(config: LossConfig, term: Contrast, batch: Batch, own: int, queue: list | None) -> Tensor:
    """The mean over the queries that have negatives.

    Args:
        own: the number of positives of a query that are of its image.
        queue: group and value of each row of a queue; None where the rows are those of the batch.
    """
    values, sites = batch.positive.flatten().tolist(), batch.within.tolist()
    rows, each = term.negatives.rows, len(term.queries) // N
    numbers = queue or [(values[r * N // len(rows)], sites[r * N // len(rows)]) for r in range(len(rows))]
    queries, cosines = [], []
    for row, q in enumerate(term.queries):
        i = row // each
        others = [i // K * K + (i - shift) % K for shift in range(1, K)]
        keys = list(enumerate(term.positives[row, :own]))
        for place, j in enumerate(others):
            theirs = term.queries[each * j : each * (j + 1)] if each > 1 else term.positives[j, :own]
            if values[j] == values[i]:
                keys += [(own + place * len(theirs) + number, key) for number, key in enumerate(theirs)]
        negatives = [
            k
            for r, (k, (group, site)) in enumerate(zip(rows, numbers, strict=True))
            if group != values[i] and site == sites[i] and (queue or r * N // len(rows) != i)
        ]
        if negatives:
            queries.append((q, [key for _, key in keys], negatives))
            cosines.append([(column, q @ key) for column, key in keys])
    assert 0 < len(queries) < len(term.queries), "some without negatives, which are left out"
    weights = weights_of(config, cosines)
    return torch.stack([loss_of(config, *query) for query in zip(queries, weights, strict=True)]).mean()


def in_queue(method: BaseMethod) -> list | None:
    if not hasattr(method, "queue"):
        return None
    return list(zip(method.queue.groups.tolist(), method.queue.within.tolist(), strict=True))


def sites(batch: Batch) -> Batch:
    """The first image alone at its site."""
    batch.within[0] = -7
    return batch


@pytest.mark.parametrize("config", LOSSES, ids=lambda config: "-".join(map(str, vars(config).values())))
@pytest.mark.parametrize(("kind", "option"), CASES, ids=str)
def test_a_loss_with_columns_equals_its_formula(kind, option, config) -> None:
    """Losses and gradients over two steps, so that a queue holds values of an earlier one."""
    method, loss = build(kind, within=True, **option), module_of("losses", config.kind).loss
    own = 2 if option.get("keys") == "rest" else 1
    for step in range(2):
        batch = sites(with_columns(training_batch(kind, option, N, step, own + 1), step, K))
        queue, method.step = in_queue(method), step
        terms = method(batch)
        if queue and step == 0:
            assert all(group == value == NO_GROUP for group, value in queue)
            assert all(not term.has_negatives().any() for term in terms), "random rows have no value"
        else:
            ours = torch.stack([loss(term, config, 0.5) for term in terms]).mean()
            theirs = torch.stack([looped(config, term, batch, own, queue) for term in terms]).mean()
            assert_same_gradients(method, ours, theirs)
        method.after_step(step / 2)
