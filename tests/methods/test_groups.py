"""Images of one group are never negatives of each other: every method against a masked dense loss."""

import pytest
import torch
from torch import Tensor

from cl.methods import BaseMethod
from cl.networks.queue import NO_GROUP
from cl.objective.terms import Contrast
from cl.runtime.registry import module_of
from tests.support.loops import assert_same_gradients
from tests.support.methods import (
    CASES,
    batch_of,
    build,
    case_name,
    loss_config,
    losses_for,
    task_of,
    training_batch,
)

IMAGES = 6
GROUPS = torch.tensor([0, 0, 1, -1, 2, 1])  # the fourth image has none
CONTRASTIVE = [case for case in CASES if "infonce" in losses_for(case[0])]
GROUP_TERMS = {"npid_cld": 2, "moco_cld": 2}  # the last, whose negatives are centres, not images
INFONCE = loss_config("infonce", alpha=None)


def grouped(kind: str, option: dict, step: int):  # type: ignore[no-untyped-def]
    """A batch with different groups at each step, and each image's group, a unique one if it has none."""
    batch = training_batch(kind, option, IMAGES, step)
    batch = batch_of(batch.views, GROUPS.roll(step), first=step * IMAGES)
    own = torch.arange(1000, 1000 + IMAGES) + step * IMAGES  # a number of its own for each image
    return batch, batch.groups.where(batch.groups >= 0, own)


def dense_loss(contrast: Contrast, groups: Tensor, columns: Tensor | None) -> Tensor:
    """InfoNCE with an (N, K) matrix, by the images that rows and columns come from.

    Args:
        groups: (n,) of the images of the batch.
        columns: (K,) groups of a queue's rows; None where the columns are the images of the batch.
    """
    q, p, k = contrast.queries, contrast.positives, contrast.negatives.rows
    image = torch.arange(len(q)) // (len(q) // IMAGES)
    counted = torch.ones(len(q), len(k), dtype=torch.bool)
    if columns is None:
        column_image = torch.arange(len(k)) // (len(k) // IMAGES)
        counted &= image[:, None] != column_image
        columns = groups[column_image]
    if contrast.negatives.selected is not None:
        counted &= torch.zeros_like(counted).scatter(1, contrast.negatives.selected, True)
    if contrast.negatives.groups is not None:
        counted &= groups[image][:, None] != columns
    logits = (q @ k.T / contrast.temperature).exp() * counted
    positive = torch.einsum("nd,npd->np", q, p) / contrast.temperature
    losses = (positive.exp() + logits.sum(1, keepdim=True)).log() - positive
    return losses[counted.any(1)].mean()


def queue_groups(method: BaseMethod, groups: Tensor, before: Tensor) -> Tensor:
    """The groups of the queue's rows after a step: those of the images whose embeddings the rows now are."""
    new, *_ = method._new
    after = before.clone()
    for place, row in enumerate(method.queue.rows):
        if len(match := (new == row).all(1).nonzero()):
            after[place] = groups[int(match[0]) % IMAGES]
    return after


@pytest.mark.parametrize("case", CONTRASTIVE, ids=case_name)
def test_a_method_with_groups_equals_a_masked_dense_loss(case) -> None:
    """Losses and gradients over three steps, so that a queue holds images of earlier ones."""
    kind, option, cut = case
    method = task_of(build(kind, cut=cut, **option)).method
    queued = torch.full((len(method.queue.rows),), NO_GROUP) if hasattr(method, "queue") else None
    module = module_of("losses", "infonce")
    for step in range(3):
        method.step = step
        batch, groups = grouped(kind, option, step)
        terms = method(batch)
        ours = torch.stack([module.loss(term, INFONCE, 0.0) for term in terms]).mean()
        of_images = terms[: len(terms) - GROUP_TERMS.get(kind, 0)]
        assert all(term.negatives.groups is not None for term in of_images)
        if len(terms[0].negatives.rows) not in (IMAGES, 2 * IMAGES) and queued is None:
            pytest.skip("only the method knows which image a column comes from, as with a bank of all images")
        in_queue = queued is not None and len(terms[0].negatives.rows) == len(queued)
        columns = queued if in_queue else None
        theirs = torch.stack([dense_loss(term, groups, columns) for term in terms]).mean()
        assert_same_gradients(method, ours, theirs)
        method.after_step(step / 3)
        if queued is not None:
            queued = queue_groups(method, groups, queued)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_groups_of_one_image_change_nothing(case) -> None:
    """The same goes for images without a group in data that has groups."""
    kind, option, cut = case
    plain = task_of(build(kind, cut=cut, **option))
    batch = training_batch(kind, option, IMAGES, 0)
    expected = plain(batch)
    for groups in (torch.arange(IMAGES), torch.full((IMAGES,), -1)):
        task = task_of(build(kind, cut=cut, **option))
        torch.testing.assert_close(task(batch_of(batch.views, groups)), expected, rtol=1e-12, atol=1e-12)


def test_a_neighbour_comes_from_another_group() -> None:
    """The nearest entry of another group; the embedding itself if the whole queue is of its group."""
    method = build("nnclr")
    embeddings = method.queue.rows[:4].clone()  # whose nearest entries are themselves
    method.queue.groups.copy_(torch.arange(20) // 2)
    similarity = embeddings @ method.queue.rows.T
    groups = torch.tensor([0, 0, 7, 1])
    for number, neighbour in enumerate(method._nearest(embeddings, groups)):
        candidates = method.queue.groups != groups[number]
        expected = int(similarity[number].where(candidates, -torch.inf).argmax())
        assert torch.equal(neighbour, method.queue.rows[expected])
    assert torch.equal(method._nearest(embeddings, groups)[2], embeddings[2])
    method.queue.groups.fill_(3)
    alone = method._nearest(embeddings, torch.tensor([3, 3, 3, 3]))
    assert torch.equal(alone, embeddings)


def test_the_epoch_counts_queries_without_negatives() -> None:
    """Four images, three of one group: the first three have one negative view pair, the last has all."""
    task = task_of(build("simclr"))
    batch = training_batch("simclr", {}, 4, 0)
    two_large = batch.views[:2]
    assert not task.has_groups
    task(batch_of(two_large, torch.tensor([5, 5, 5, 5])))
    assert task.has_groups
    task(batch_of(two_large, torch.tensor([5, 5, 5, 6])))
    assert task.take_without_negatives() == 8  # all 2N queries of the first batch, none of the second
    assert task.take_without_negatives() == 0


@pytest.mark.parametrize("name", losses_for("simclr"))
def test_all_queries_without_negatives_give_a_loss_of_zero(name) -> None:
    task = task_of(build("simclr"), loss_config(name))
    loss = task(batch_of(training_batch("simclr", {}, 4, 0).views, torch.zeros(4, dtype=torch.int64)))
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or torch.equal(p.grad, torch.zeros_like(p)) for p in task.parameters())
