"""SimCLR against loops written from its paper and from EqCo."""

import copy
import itertools
from functools import partial

import pytest
import torch

from cl import config
from cl.methods._shared.negatives import sample_without_replacement
from tests.support.loops import assert_equals_the_loop, cross_entropy, normal, projections
from tests.support.methods import TAU, batch_of, build, config_of, views
from tests.support.project import compose


def loop(method, inputs, other_view=False):  # type: ignore[no-untyped-def]
    """Every view against the first two, the only positives and negatives (DCLW with multi-crop).

    other_view: negatives are the N - 1 embeddings of the positive's view alone (EqCo).
    """
    n, z = len(inputs[0]), [normal(x) for x in projections(method, inputs)]
    losses = []
    for a, b, i in itertools.product(range(len(inputs)), range(2), range(n)):
        if a != b:
            pool = [b] if other_view else [0, 1]
            others = [z[a][i] @ z[v][j] / TAU for j in range(n) if j != i for v in pool]
            losses.append(cross_entropy(z[a][i] @ z[b][i] / TAU, others))
    return torch.stack(losses).mean()


def loop_of_all_pairs(method, inputs):  # type: ignore[no-untyped-def]
    """SimCLR's loss of each two views, as if there were no others."""
    n, z = len(inputs[0]), [normal(x) for x in projections(method, inputs)]
    losses = []
    for a, b, i in itertools.product(range(len(inputs)), range(len(inputs)), range(n)):
        if a != b:
            others = [z[a][i] @ z[v][j] / TAU for j in range(n) if j != i for v in (a, b)]
            losses.append(cross_entropy(z[a][i] @ z[b][i] / TAU, others))
    return torch.stack(losses).mean()


def dclw_loop(method, inputs):  # type: ignore[no-untyped-def]
    """DCLW: all pairs of a target view have one mean weight."""
    n, z = len(inputs[0]), [normal(x) for x in projections(method, inputs)]
    means = []
    for b in range(2):
        pairs = [(a, i) for a, i in itertools.product(range(len(inputs)), range(n)) if a != b]
        cosines = torch.stack([z[a][i] @ z[b][i] for a, i in pairs])
        weights = 2 - (cosines / 0.5).exp() / (cosines / 0.5).exp().mean()
        others = [[z[a][i] @ z[v][j] / TAU for j in range(n) if j != i for v in range(2)] for a, i in pairs]
        partitions = torch.stack([torch.stack(logits).logsumexp(0) for logits in others])
        means.append((partitions - weights.detach() * cosines / TAU).mean())
    return torch.stack(means).mean()


def sampled_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Each query against the columns that it samples from the other view's embeddings, one by one."""
    z = [normal(x) for x in projections(method, inputs)]
    losses = []
    for b, contrast in enumerate(copy.deepcopy(method)(batch_of(inputs))):
        for i, columns in enumerate(contrast.negatives.selected.tolist()):
            others = [z[1 - b][i] @ z[b][c] / TAU for c in columns]
            losses.append(cross_entropy(z[1 - b][i] @ z[b][i] / TAU, others))
    return torch.stack(losses).mean()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("simo", {"negatives": 3, "sampling": "per_query"}),
        ("simclr", {"pool": "other_view", "negatives": 3}),
        ("simclr", {"pool": "both_views", "negatives": 7}),
    ],
)
def test_per_query_samples_are_distinct_and_of_other_images(kind, settings) -> None:
    method = build(kind, **settings)
    seen: set[tuple[int, int]] = set()
    for step in range(40):
        method.step = step
        for contrast in method(batch_of(views(6))):
            width = len(contrast.negatives.rows) // 6
            for i, row in enumerate(contrast.negatives.selected.tolist()):
                assert len(set(row)) == settings["negatives"]
                assert all(column // width != i for column in row)
                seen |= {(i, column) for column in row}
            assert len({tuple(row) for row in contrast.negatives.selected.tolist()}) > 1
    assert len(seen) == 6 * 5 * width  # all others come up


@pytest.mark.parametrize(("pool", "most"), [("both_views", 10), ("other_view", 5)])
def test_a_query_samples_at_most_its_whole_pool(pool, most) -> None:
    config_of("simclr", pool=pool, negatives=most).check(6, 1.0)
    with pytest.raises(ValueError, match=f"negatives={most + 1} exceeds the {most} of a batch"):
        config_of("simclr", pool=pool, negatives=most + 1).check(6, 1.0)


def test_samples_are_uniform_without_replacement() -> None:
    rows = sample_without_replacement(20_000, 6, 2, torch.Generator().manual_seed(0))
    assert (rows[:, 0] != rows[:, 1]).all()
    frequencies = torch.bincount(rows.flatten(), minlength=6) / 20_000
    torch.testing.assert_close(frequencies, torch.full((6,), 1 / 3), atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("settings", "loop", "sizes"),
    [
        ({}, loop, (12, 12)),
        ({}, loop, (12, 12, 8, 8, 8)),
        ({"targets": "all"}, loop_of_all_pairs, (12, 12, 8, 8)),
        ({"pool": "other_view"}, partial(loop, other_view=True), (12, 12)),
        ({"pool": "other_view", "negatives": 3}, sampled_loop, (12, 12)),
    ],
)
def test_simclr_equals_the_loop_of_its_paper(settings, loop, sizes) -> None:
    assert_equals_the_loop(build("simclr", **settings), loop, sizes)


def test_dclw_with_several_views_equals_its_loop() -> None:
    assert_equals_the_loop(build("simclr"), dclw_loop, (12, 12, 8, 8), loss="dclw")


def test_all_targets_of_two_views_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="targets=all needs three views or more, found 2"):
        config.check(compose(tmp_path, "method.targets=all"))
