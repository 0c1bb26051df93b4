"""CLD on NPID and on MoCo, against loops written from its authors' settings."""

import copy

import pytest
import torch
from torch import Tensor, nn

from cl.methods._shared.kmeans import batch_clusters, nearest_centre
from cl.methods.moco_cld import Method
from tests.support.loops import assert_same_gradients, cross_entropy, loss_of, normal
from tests.support.methods import IMAGES, TAU, batch_of, build, views

GROUP = {"images": "global", "clusters": 4, "iterations": 3, "temperature": 0.5, "weight": 0.7}
TEMPERATURE = 0.5


def k_means(rows: list[Tensor], k: int, iterations: int) -> tuple[list[Tensor], list[int]]:
    """From the first k rows; empty clusters, and those without a first row, have their centre at 0."""
    centres = [rows[j].detach() if j < len(rows) else 0 * rows[0].detach() for j in range(k)]
    for _ in range(iterations):
        labels = []
        for row in rows:
            distances = [float((row - centre).square().sum().detach()) for centre in centres]
            labels.append(distances.index(min(distances)))
        members = [[row for row, label in zip(rows, labels, strict=True) if label == j] for j in range(k)]
        centres = [torch.stack(m).mean(0) if m else 0 * rows[0].detach() for m in members]
    return centres, labels


def group_loss(first: Tensor, second: Tensor, k: int, iterations: int, part: int) -> Tensor:
    """1/2 [CE(a C_b, l_b) + CE(b C_a, l_a)], with k-means on each part of the batch by itself."""
    losses = []
    for start in range(0, len(first), part):
        a, b = ([*view[start : start + part]] for view in (first, second))
        for queries, others in ((a, b), (b, a)):
            centres, labels = k_means(others, k, iterations)
            for query, label in zip(queries, labels, strict=True):
                logits = [query @ centre / TEMPERATURE for centre in centres]
                losses.append(cross_entropy(logits[label], logits[:label] + logits[label + 1 :]))
    return torch.stack(losses).mean()


def embeddings(method: nn.Module, view: Tensor) -> tuple[Tensor, Tensor]:
    """Of the images and for the groups: two last layers on one hidden layer."""
    hidden = method.projector[:-1](method.backbone(view))
    return normal(method.projector[-1](hidden)), normal(method.group_head[0](hidden))


PARTS = [(8, 4, 12), (12, 3, 12), (12, 5, 4), (4, 9, 4)]  # images, clusters, images clustered together


@pytest.mark.parametrize(("n", "clusters", "part"), PARTS)
@pytest.mark.parametrize("sizes", [(12, 12), (12, 12, 8)], ids=len)
def test_npid_cld_equals_the_loop(n, clusters, part, sizes) -> None:
    """The mean of NPID's losses over the views, plus lambda times the group loss; the bank is NPID's."""
    group = {**GROUP, "images": part, "clusters": clusters}
    method = build("npid_cld", negatives=None, own=False, group=group)
    npid = build("npid", negatives=None, own=False)
    npid.bank.load_state_dict(method.bank.state_dict())
    batch = batch_of(views(n, 1, sizes))
    pairs = [embeddings(method, view) for view in batch.views]
    instances = [
        cross_entropy(
            z @ method.bank.rows[i] / TAU, [z @ method.bank.rows[j] / TAU for j in range(IMAGES) if j != i]
        )
        for own, _ in pairs
        for i, z in enumerate(own)
    ]
    groups = group_loss(pairs[0][1], pairs[1][1], clusters, 3, part)
    terms = method(batch)
    total = torch.stack([term.weight * loss_of([term], "infonce") for term in terms]).mean()
    expected = torch.stack(instances).mean() + 0.7 * groups
    assert_same_gradients(method, 2 * total, expected)
    method.after_step(0.5)
    npid.remember(normal((pairs[0][0] + pairs[1][0]) / 2), batch)
    npid.after_step(0.5)
    torch.testing.assert_close(method.bank.rows, npid.bank.rows)


@pytest.mark.parametrize("sizes", [(12, 12, 12), (12, 12, 12, 8)], ids=len)
def test_moco_cld_equals_the_loop(sizes) -> None:
    """Queries are the views but the third, which is the key; the queue takes the keys once."""
    method = build("moco_cld", group=GROUP, shuffle=False)
    assert isinstance(method, Method)
    for parameter in method.target.parameters():
        parameter.data.add_(0.1)
    target = copy.deepcopy(method.target)
    inputs = views(8, 2, sizes)
    pairs = [embeddings(method, view) for number, view in enumerate(inputs) if number != 2]
    keys = normal(target(inputs[2])).detach()
    instances = [
        cross_entropy(q @ key / TAU, [q @ row / TAU for row in method.queue.rows])
        for own, _ in pairs
        for q, key in zip(own, keys, strict=True)
    ]
    groups = group_loss(pairs[0][1], pairs[1][1], 4, 3, 8)
    terms = method(batch_of(inputs))
    total = torch.stack([term.weight * loss_of([term], "infonce") for term in terms]).mean()
    expected = torch.stack(instances).mean() + 0.7 * groups
    assert_same_gradients(method, 2 * total, expected)
    method.after_step(0.5)
    torch.testing.assert_close(method.queue.rows[:8], keys)
    assert int(method.queue.oldest) == 8


def test_an_empty_cluster_has_its_centre_at_zero() -> None:
    """Two of the first three rows are equal: all go to the first."""
    rows = torch.tensor([[1.0, 0], [1, 0], [0, 1], [1, 0]])
    centres, labels = batch_clusters(rows, 3, 2)
    assert labels.tolist() == [0, 0, 2, 0]
    assert centres.tolist() == [[1, 0], [0, 0], [0, 1]]


def test_of_equally_near_centres_the_first_is_chosen() -> None:
    """Whatever rounding does to their distances, as on different numbers of processes."""
    rows = normal(torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    nudges = 1 + 1e-16 * torch.tensor([0, 3, -3, 5]).double()
    centres = torch.cat([rows[3:4] * nudge for nudge in nudges] + [rows[1:2]])
    assert nearest_centre(rows, centres)[[1, 3]].tolist() == [4, 0]
    apart = rows[3:4] * (1 - 1e-6)
    assert nearest_centre(rows[3:4], torch.cat([apart, rows[3:4]])).tolist() == [1]
