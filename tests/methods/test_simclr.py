"""SimCLR against loops written from its paper and from EqCo."""

import copy
import itertools

import pytest
import torch

from cl.methods._shared.negatives import sample_without_replacement
from cl.runtime.registry import module_of
from tests.support.loops import assert_equals_the_loop, cross_entropy, normal
from tests.support.methods import TAU, batch_of, build, config_of, views


def simclr_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Both views in one pass; the other view of an image is the positive, the rest are negatives."""
    n = len(inputs[0])
    z = normal(method.projector(method.backbone(torch.stack(inputs, 1).flatten(0, 1))))
    losses = []
    for image, view in itertools.product(range(n), range(2)):
        anchor, positive = z[2 * image + view], z[2 * image + 1 - view]
        others = [anchor @ z[2 * j + v] / TAU for j in range(n) if j != image for v in range(2)]
        losses.append(cross_entropy(anchor @ positive / TAU, others))
    return torch.stack(losses).mean()


def other_view_loop(method, inputs):  # type: ignore[no-untyped-def]
    """EqCo's pool: the N - 1 keys of the positive's view."""
    n = len(inputs[0])
    z = normal(method.projector(method.backbone(torch.stack(inputs, 1).flatten(0, 1)))).unflatten(0, (n, 2))
    losses = []
    for image, view in itertools.product(range(n), range(2)):
        anchor = z[image, view]
        others = [anchor @ z[j, 1 - view] / TAU for j in range(n) if j != image]
        losses.append(cross_entropy(anchor @ z[image, 1 - view] / TAU, others))
    return torch.stack(losses).mean()


def multicrop_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Every crop against the two large crops, the only positives and negatives (DCLW with multi-crop)."""
    n = len(inputs[0])
    large = method.projector(method.backbone(torch.stack(inputs[:2], 1).flatten(0, 1)))
    small = method.projector(method.backbone(torch.stack(inputs[2:], 1).flatten(0, 1)))
    z = torch.cat([normal(large).unflatten(0, (n, 2)), normal(small).unflatten(0, (n, -1))], 1)  # (N, V, D)
    losses = []
    for a, b, i in itertools.product(range(len(inputs)), range(2), range(n)):
        if a != b:
            others = [z[i, a] @ z[j, v] / TAU for j in range(n) if j != i for v in range(2)]
            losses.append(cross_entropy(z[i, a] @ z[i, b] / TAU, others))
    return torch.stack(losses).mean()


def sampled_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Each query against the columns that it samples from the other view's embeddings, one by one."""
    n = len(inputs[0])
    z = normal(method.projector(method.backbone(torch.stack(inputs, 1).flatten(0, 1)))).unflatten(0, (n, 2))
    losses = []
    for b, contrast in enumerate(copy.deepcopy(method)(batch_of(inputs))):
        for i, columns in enumerate(contrast.negatives.selected.tolist()):
            others = [z[i, 1 - b] @ z[c, b] / TAU for c in columns]
            losses.append(cross_entropy(z[i, 1 - b] @ z[i, b] / TAU, others))
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
    with pytest.raises(ValueError, match=f"negatives={most + 1} exceeds the {most} negatives"):
        config_of("simclr", pool=pool, negatives=most + 1).check(6, 1.0)


def test_samples_are_uniform_without_replacement() -> None:
    rows = sample_without_replacement(20_000, 6, 2, torch.Generator().manual_seed(0))
    assert (rows[:, 0] != rows[:, 1]).all()
    frequencies = torch.bincount(rows.flatten(), minlength=6) / 20_000
    torch.testing.assert_close(frequencies, torch.full((6,), 1 / 3), atol=0.02, rtol=0)


def test_multicrop_of_two_views_is_two_views() -> None:
    """SimCLR: the one contrast of 2N queries is the mean of the two pairs of the general form."""
    method = build("simclr")
    inputs = views(5)
    for kind, settings in (
        ("infonce", {"alpha": 100.0}),
        ("dcl", {}),
        ("dclw", {"sigma": 0.5, "detach_weight": True}),
    ):
        module = module_of("losses", kind)
        config = module.Config(kind=kind, **settings)
        (joint,) = method(batch_of(inputs))
        z = joint.queries.unflatten(0, (5, 2))
        apart = [
            method._contrast(
                z[:, a], z[:, 1 - a], joint.negatives.rows, batch_of(inputs), method.generator("")
            )
            for a in range(2)
        ]
        torch.testing.assert_close(
            module.loss(joint, config, 0.0), torch.stack([module.loss(c, config, 0.0) for c in apart]).mean()
        )


@pytest.mark.parametrize(
    ("settings", "loop", "sizes"),
    [
        ({}, simclr_loop, (12, 12)),
        ({"pool": "other_view"}, other_view_loop, (12, 12)),
        ({"pool": "other_view", "negatives": 3}, sampled_loop, (12, 12)),
        ({}, multicrop_loop, (12, 12, 8, 8, 8)),
    ],
)
def test_simclr_equals_the_loop_of_its_paper(settings, loop, sizes) -> None:
    assert_equals_the_loop(build("simclr", **settings), loop, sizes)
