"""BYOL, SimSiam, MoCo v3, NNCLR and Fast-MoCo against a loop written from their papers."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from cl.networks import patches
from cl.networks.queue import Queue
from tests.support.loops import assert_equals_the_loop, in_passes, normal, with_another_target
from tests.support.methods import FAST, TAU, WHOLE, build, gives, kind_of, views


def prediction(method, x):  # type: ignore[no-untyped-def]
    """(N, 1, D)."""
    return normal(method.predictor(method.projector(method.backbone(x))))[:, None]


def predictions_of_pairs(method, x):  # type: ignore[no-untyped-def]
    """(N, 6, D): combinations of the quarters of each image, which are taken column by column."""
    side = x.shape[-1] // 2
    corners = [x[:, :, r : r + side, c : c + side] for c in (0, side) for r in (0, side)]
    encoded = method.backbone(torch.stack(corners, 1).flatten(0, 1)).unflatten(0, (len(x), 4))
    pairs = [(encoded[:, a] + encoded[:, b]) / 2 for a in range(4) for b in range(a + 1, 4)]
    projected = method.projector(torch.stack(pairs, 1).flatten(0, 1))
    return normal(method.predictor(projected)).unflatten(0, (len(x), 6))


def loop(method, inputs, cut):  # type: ignore[no-untyped-def]
    """Every prediction of every view against each of the first two views' targets, but not its own.

    MoCo v3 and Fast-MoCo: cross-entropy with the targets of all images; BYOL and SimSiam: squared distance of
    unit vectors, 2 - 2 cosine; NNCLR: the queue's nearest row to a target against all predictions.
    """
    predict = partial(predictions_of_pairs if cut else prediction, method)
    predictions = in_passes(predict, inputs, separate=2)  # (N, 1 or 6, D) each
    target = getattr(method, "target", None) or (lambda x: method.projector(method.backbone(x)))
    targets = [normal(target(x)).detach() for x in inputs[:2]]
    losses = []
    for b, a in itertools.product(range(2), range(len(inputs))):
        for p in predictions[a].unbind(1) if a != b else []:
            if kind_of(method) == "nnclr":
                nearest = [max(method.queue.rows, key=lambda row, z=z: float(row @ z)) for z in targets[b]]
                losses.append(F.cross_entropy(torch.stack(nearest) @ p.T / TAU, torch.arange(len(p))))
            elif "contrasts" in gives(kind_of(method)):
                losses.append(F.cross_entropy(p @ targets[b].T / TAU, torch.arange(len(p))))
            else:
                losses.append((p - targets[b]).square().sum(1).mean())
    return torch.stack(losses).mean()


def test_neighbours_are_found_in_full_precision() -> None:
    """In bfloat16 most near neighbours would be ties."""
    method = build("nnclr").float()
    torch.manual_seed(0)
    centre = F.normalize(torch.randn(5), dim=0)
    method.queue = Queue(4096, 5)
    method.queue.rows.copy_(F.normalize(centre + 0.05 * torch.randn(4096, 5), dim=1))
    queries = F.normalize(centre + 0.05 * torch.randn(64, 5), dim=1)
    expected = method._nearest(queries, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(method._nearest(queries, None), expected)


def test_the_drawn_direction_is_the_same_for_both_views_and_changes_with_the_step() -> None:
    method = build("byol", cut=FAST.model_copy(update={"pairs": "drawn"}))
    chosen = []
    for step in range(8):
        method.step = step
        chosen.append([patches._combinations(method.patches, method.generator("patches")) for _ in range(2)])
        assert chosen[-1][0] == chosen[-1][1]
    assert {tuple(c[0]) for c in chosen} == {((0, 1), (2, 3)), ((0, 2), (1, 3))}


@pytest.mark.parametrize("stage", patches.MEANS)
def test_identical_patches_equal_no_patches(stage) -> None:
    """An image of four equal patches: each combination is the embedding of one patch."""
    method = build("moco_v3", cut=FAST.model_copy(update={"stage": stage})).eval()
    patch = views(4, sizes=(6,))[0]
    ours, _ = method.predictions_and_targets([patch.repeat(1, 1, 2, 2)] * 2)
    plain, _ = build("moco_v3").eval().predictions_and_targets([patch] * 2)
    torch.testing.assert_close(ours[0], plain[0].expand(4, 6, 5))


@pytest.mark.parametrize("kind", ["moco_v3", "byol", "simsiam", "nnclr"])
@pytest.mark.parametrize("cut", [WHOLE, FAST], ids=["whole", "patches"])
@pytest.mark.parametrize("sizes", [(12, 12), (12, 12, 8, 8)], ids=len)
def test_a_method_equals_its_loop(kind, cut, sizes) -> None:
    method = with_another_target(kind, cut=cut)
    assert_equals_the_loop(method, partial(loop, cut=cut == FAST), sizes)
