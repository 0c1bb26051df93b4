"""BYOL, SimSiam, MoCo v3, NNCLR and Fast-MoCo against loops written from their papers."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.networks import patches
from cl.networks.queue import Queue
from tests.support.loops import assert_equals_the_loop, cross_entropy, normal, with_another_target
from tests.support.methods import FAST, TAU, build, gives, kind_of, views


def moco_v3_loop(method, inputs):  # type: ignore[no-untyped-def]
    """ctr(q1, k2) + ctr(q2, k1), each 2 tau times a cross-entropy; the sum is 4 tau times our mean."""
    q1, q2 = (normal(method.predictor(method.projector(method.backbone(x)))) for x in inputs)
    k1, k2 = (normal(method.target(x)).detach() for x in inputs)
    labels = torch.arange(len(q1))
    ctr = sum(2 * TAU * F.cross_entropy(q @ k.T / TAU, labels) for q, k in ((q1, k2), (q2, k1)))
    return ctr / (4 * TAU)


def byol_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Half of the sum over both directions of the squared distance of unit vectors (eq. 2 to 4)."""
    p1, p2 = (normal(method.predictor(method.projector(method.backbone(x)))) for x in inputs)
    z1, z2 = (normal(method.target(x)).detach() for x in inputs)
    return ((p1 - z2).square().sum(1).mean() + (p2 - z1).square().sum(1).mean()) / 2


def simsiam_loop(method, inputs):  # type: ignore[no-untyped-def]
    """L = D(p1, z2) / 2 + D(p2, z1) / 2 with D = -cosine: half of ours, up to the constant 1."""
    z1, z2 = (method.projector(method.backbone(x)) for x in inputs)
    p1, p2 = method.predictor(z1), method.predictor(z2)
    d = [-F.cosine_similarity(p, z.detach(), dim=1).mean() for p, z in ((p1, z2), (p2, z1))]
    return 2 * (d[0] / 2 + d[1] / 2) + 2


def nnclr_loop(method, inputs):  # type: ignore[no-untyped-def]
    """CE(neighbour of z1, predictions of view 2) and vice versa; gradient only through the predictions."""
    z1, z2 = (method.projector(method.backbone(x)) for x in inputs)
    p1, p2 = normal(method.predictor(z1)), normal(method.predictor(z2))
    losses = []
    for z, p in ((z1, p2), (z2, p1)):
        for i, row in enumerate(normal(z).detach()):
            nearest = max(method.queue.rows, key=lambda entry: float(entry @ row))
            logits = [nearest @ p[j] / TAU for j in range(len(p))]
            losses.append(cross_entropy(logits[i], logits[:i] + logits[i + 1 :]))
    return torch.stack(losses).mean()


def predictions_of_pairs(method, x):  # type: ignore[no-untyped-def]
    """Six combinations of the quarters of each image, which are taken column by column; (N, D) each."""
    side = x.shape[-1] // 2
    corners = [x[:, :, r : r + side, c : c + side] for c in (0, side) for r in (0, side)]
    encoded = method.backbone(torch.stack(corners, 1).flatten(0, 1)).unflatten(0, (len(x), 4))
    pairs = [(encoded[:, a] + encoded[:, b]) / 2 for a in range(4) for b in range(a + 1, 4)]
    projected = method.projector(torch.stack(pairs, 1).flatten(0, 1))
    return normal(method.predictor(projected)).unflatten(0, (len(x), 6)).unbind(1)


def fast_moco_loop(method, inputs):  # type: ignore[no-untyped-def]
    """Algorithm 1: divide, encode, make six combinations, project, predict; mean over twelve terms."""
    targets = [normal(method.target(x)).detach() for x in inputs]
    losses = []
    for x, target in ((inputs[0], targets[1]), (inputs[1], targets[0])):
        predictions = predictions_of_pairs(method, x)
        losses += [F.cross_entropy(p @ target.T / TAU, torch.arange(len(p))) for p in predictions]
    assert len(losses) == 12
    return torch.stack(losses).mean()


def predictions_loop(method, inputs, cut):  # type: ignore[no-untyped-def]
    """Predictions (N, D) of every view, projections of the first two; small views share a pass."""
    n = len(inputs[0])

    def predict(x: Tensor) -> list[Tensor]:
        if cut:
            return list(predictions_of_pairs(method, x))
        return [normal(method.predictor(method.projector(method.backbone(x))))]

    predictions = [predict(x) for x in inputs[:2]]
    small = predict(torch.stack(inputs[2:], 1).flatten(0, 1))
    for number in range(len(inputs) - 2):
        predictions.append([p.unflatten(0, (n, -1))[:, number] for p in small])
    if target := getattr(method, "target", None):
        projections = [normal(target(x)).detach() for x in inputs[:2]]
    else:
        projections = [normal(method.projector(method.backbone(x))).detach() for x in inputs[:2]]
    return predictions, projections


def crops_loop(cut: bool):  # type: ignore[no-untyped-def]
    """Every prediction of every crop against each of the two targets that is not of the same crop."""

    def loop(method, inputs):  # type: ignore[no-untyped-def]
        predictions, projections = predictions_loop(method, inputs, cut)
        losses = []
        for b, a in itertools.product(range(2), range(len(inputs))):
            if a == b:
                continue
            for p in predictions[a]:
                if type(method).__module__.endswith("nnclr"):
                    nearest = [
                        max(method.queue.rows, key=lambda entry, row=row: float(entry @ row))
                        for row in projections[b]
                    ]
                    logits = torch.stack(nearest) @ p.T / TAU
                    losses.append(F.cross_entropy(logits, torch.arange(len(p))))
                elif "contrasts" in gives(kind_of(method)):
                    losses.append(F.cross_entropy(p @ projections[b].T / TAU, torch.arange(len(p))))
                else:
                    losses.append((p - projections[b]).square().sum(1).mean())
        return torch.stack(losses).mean()

    return loop


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


@pytest.mark.parametrize(
    ("kind", "loop"),
    [
        ("moco_v3", moco_v3_loop),
        ("byol", byol_loop),
        ("simsiam", simsiam_loop),
        ("nnclr", nnclr_loop),
    ],
)
def test_a_method_equals_the_loop_of_its_paper(kind, loop) -> None:
    assert_equals_the_loop(with_another_target(kind), loop)


def test_moco_v3_with_patches_equals_fast_moco() -> None:
    assert_equals_the_loop(with_another_target("moco_v3", cut=FAST), fast_moco_loop)


@pytest.mark.parametrize("kind", ["moco_v3", "byol", "nnclr"])
def test_small_crops_are_predicted_from_too(kind) -> None:
    assert_equals_the_loop(with_another_target(kind), crops_loop(cut=False), (12, 12, 8, 8))


@pytest.mark.parametrize("kind", ["moco_v3", "byol", "simsiam", "nnclr"])
def test_patches_of_small_crops_are_predicted_from_too(kind) -> None:
    assert_equals_the_loop(with_another_target(kind, cut=FAST), crops_loop(cut=True), (12, 12, 8, 8))
