"""Local Aggregation against loops written from its authors' settings."""

import math

import pytest
import torch
from torch import Tensor

from cl import config
from cl.methods._shared.kmeans import cluster
from cl.methods.local_aggregation import Method
from tests.support.loops import assert_same_gradients, loss_of, normal
from tests.support.methods import (
    IMAGES,
    TAU,
    batch_of,
    build,
    losses_for,
    task_of,
    train_step,
    training_batch,
    views,
)
from tests.support.project import TINY, compose

LABELS = 6


def clustered(images_per_neighbour: float) -> Method:
    """A method with three clusterings at random."""
    method = build(
        "local_aggregation", warmup_epochs=0, clusterings=3, images_per_neighbour=images_per_neighbour
    )
    assert isinstance(method, Method)
    method.labels.copy_(torch.randint(LABELS, (3, IMAGES), generator=torch.Generator().manual_seed(0)))
    return method


def loop(method: Method, inputs: list[Tensor], groups: Tensor | None, first: int) -> Tensor:
    """-log(sum over B and C of e^s / sum over B + 1e-7) + log(1 + 1e-7), the mean over images and views."""
    losses = []
    for view in inputs:
        for i, z in enumerate(normal(method.projector(method.backbone(view)))):
            exponentials = [(z @ row / TAU).exp() for row in method.bank.rows]
            order = sorted(range(IMAGES), key=lambda j: -float(exponentials[j].detach()))
            background = order[: method.neighbours]
            close = [j for j in background if any(labels[j] == labels[first + i] for labels in method.labels)]
            far = [j for j in background if j not in close]
            if groups is not None:
                far = [j for j in far if method.bank.groups[j] != groups[i]]
            inside = sum((exponentials[j] for j in close), torch.zeros(()))
            total = inside + sum((exponentials[j] for j in far), torch.zeros(()))
            if far:
                losses.append(-(inside / total + 1e-7).log() + math.log(1 + 1e-7))
            else:
                losses.append(0 * total)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("images_per_neighbour", [1.0, 5.0, 24.0, 100.0])
def test_the_loss_equals_the_loop(images_per_neighbour) -> None:
    """The whole bank is background; or a part of it, with few or no close ones, or close ones only."""
    method = clustered(images_per_neighbour)
    inputs = views(8, 1, (12, 12, 8))
    terms = method(batch_of(inputs, first=3))
    assert method.sizes["background_neighbours"] == {1: 96, 5: 19, 24: 4, 100: 2}[int(images_per_neighbour)]
    assert_same_gradients(method, loss_of(terms, "infonce"), loop(method, inputs, None, 3))


def test_what_is_measured_is_the_distance_to_the_own_row() -> None:
    method = clustered(5.0)
    inputs = views(8, 1)
    z = normal(method.projector(method.backbone(inputs[0])))
    own = method.bank.rows[3:11]
    term = method(batch_of(inputs, first=3))[0]
    torch.testing.assert_close(term.squared_distances()[:, 0], (z - own).square().sum(1))


def test_queries_without_close_or_without_far_neighbours() -> None:
    """Only the floor of 1e-7 is left, whose gradient is 0; or all are close, and the loss is 0."""
    method = clustered(8.0)
    method.labels[:, :] = 0
    inputs = views(4)
    all_close = loss_of(method(batch_of(inputs)), "infonce")
    assert float(all_close.detach()) == 0
    method.labels[:, 0:4] = torch.tensor([7, 0, 0, 7])
    method.bank.rows[4:] = normal(method.projector(method.backbone(inputs[0]))).mean(0).detach()
    terms = method(batch_of(inputs))
    assert_same_gradients(method, loss_of(terms, "infonce"), loop(method, inputs, None, 0))
    losses = loop(method, [inputs[0][:4]], None, 0)
    assert torch.isfinite(losses)


def test_far_neighbours_of_the_own_group_do_not_count() -> None:
    method = clustered(5.0)
    method.bank.groups.copy_(torch.arange(IMAGES) % 4)
    inputs, groups = views(6, 2), torch.tensor([0, 1, 2, 3, 0, 1])
    terms = method(batch_of(inputs, groups))
    assert_same_gradients(method, loss_of(terms, "infonce"), loop(method, inputs, groups, 0))


def test_a_query_left_without_any_neighbour_has_a_finite_loss() -> None:
    """All neighbours are far and of its own group, and its own row is the least similar."""
    method = clustered(8.0)
    inputs = views(4)[:1] * 2
    method.bank.rows[20:24] = -normal(method.projector(method.backbone(inputs[0]))).detach()
    method.labels.copy_(torch.arange(IMAGES).repeat(3, 1))
    method.bank.groups.fill_(5)
    for name in losses_for("local_aggregation"):
        loss = loss_of(method(batch_of(inputs, torch.full((4,), 5), first=20)), name)
        trained = [p for p in method.parameters() if p.requires_grad]
        assert float(loss.detach()) == 0, name
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, trained)), name


def test_clusters_begin_after_the_warm_up_and_are_resumed_within_an_epoch() -> None:
    """During warm-up the bank's samples are negatives; a loaded state has the labels of its epoch."""
    task = task_of(build("local_aggregation", warmup_epochs=1, clusterings=2))
    batches = [training_batch("local_aggregation", {}, 8, number) for number in range(4)]
    task.begin_epoch(0)
    train_step(task, 0, batches[0])
    assert (task.method.labels == -1).all()
    assert task.method(batches[1])[0].negatives.selected.shape[1] == 20
    task.begin_step(1, 0.1)
    task.begin_epoch(1)
    labels = task.method.labels.clone()
    assert labels.min() == 0
    assert labels.max() == task.method.sizes["clusters"] - 1 == 4
    assert not torch.equal(labels[0], labels[1])
    train_step(task, 1, batches[1])
    resumed = task_of(build("local_aggregation", warmup_epochs=1, clusterings=2))
    resumed.load_state_dict(task.state_dict())
    for number in (2, 3):
        assert torch.equal(
            train_step(task, number, batches[number]), train_step(resumed, number, batches[number])
        )
    task.begin_step(4, 0.4)
    task.begin_epoch(2)
    assert not torch.equal(task.method.labels, labels)


def test_k_means_equals_a_loop() -> None:
    """Plain k-means from random rows; an empty cluster keeps its centre."""
    generator = torch.Generator().manual_seed(3)
    rows = normal(torch.randn(40, 3, generator=generator, dtype=torch.float64))
    rows[30:] = rows[0]  # equal first centres leave clusters empty; one's only row is not its first centre
    found = cluster(rows, 25, 6, torch.Generator().manual_seed(17))
    first = torch.randperm(40, generator=torch.Generator().manual_seed(17))[:25]
    centres = [rows[j] for j in first]

    def labels() -> list[int]:
        distances = [[float((row - c).square().sum()) for c in centres] for row in rows]
        return [next(k for k, x in enumerate(d) if x <= min(d) + 1e-13) for d in distances]

    for _ in range(6):
        members = [[row for row, label in zip(rows, labels(), strict=True) if label == k] for k in range(25)]
        assert not all(members)
        centres = [torch.stack(m).mean(0) if m else c for m, c in zip(members, centres, strict=True)]
    assert found.tolist() == labels()


def test_a_warm_up_over_the_whole_run_is_for_a_run_that_continues(tmp_path) -> None:
    found = config.check(compose(tmp_path, *TINY, "method=local_aggregation", "method.warmup_epochs=1"))
    assert found.method.warmup_epochs == 1
    continued = found.model_dump()
    continued["start_from"] = {"name": "parent", "method": "md5:a1", "optimizer": "md5:b2"}
    continued["method"]["warmup_epochs"] = 2
    assert config.check(continued).method.warmup_epochs == 2, "the parent may have taken them"
