"""NPID against loops written from its paper and its authors' settings."""

import pytest
import torch
from torch import Tensor

from cl.methods import BaseMethod
from cl.networks import bank as bank_module
from cl.objective.batch import Batch
from tests.support.loops import assert_same_gradients, cross_entropy, loss_of, nce, normal
from tests.support.methods import (
    IMAGES,
    TAU,
    batch_of,
    build,
    config_of,
    task_of,
    train_step,
    training_batch,
    views,
)

SIZES = (12, 12, 8)


def batch_at(step: int, sizes: tuple[int, ...] = SIZES, groups: Tensor | None = None) -> Batch:
    """Six images; the last two of a step are the first two of the next."""
    return batch_of(views(6, step, sizes), groups, first=4 * step)


def embeddings(method: BaseMethod, batch: Batch) -> list[Tensor]:
    return [normal(method.projector(method.backbone(view))) for view in batch.views]


def moved(row: Tensor, seen: list[Tensor], momentum: float) -> Tensor:
    """The row after a step in which the image had these embeddings."""
    return normal(momentum * row + (1 - momentum) * normal(sum(seen) / len(seen)))  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(12,), (12, 12), SIZES], ids=len)
def test_nce_equals_the_loop_of_the_paper(sizes) -> None:
    """Eqs. 5 to 7: P = e^s / Z, h = P / (P + K / n); Z from the first batch; the row before its update."""
    method = build("npid", negatives=7, own=True)
    bank, z = list(method.bank.rows.clone()), None
    for step in range(3):
        method.step = step
        batch = batch_at(step, sizes)
        terms = method(batch)
        found = embeddings(method, batch)
        noise = terms[0].negatives.selected.tolist()
        logits = [
            [view[i] @ bank[j] / TAU for j in [int(position), *noise[i]]]
            for view in found
            for i, position in enumerate(batch.positions)
        ]
        if z is None:
            together = [s.detach().exp() for row in logits for s in row]
            z = IMAGES * sum(together) / len(together)
        losses = [nce(positive, negatives, z) for positive, *negatives in logits]
        assert_same_gradients(method, loss_of(terms, "nce"), sum(losses) / len(losses))
        method.after_step(0.5)
        for i, position in enumerate(batch.positions):
            seen = [view[i].detach() for view in found[:2]]
            bank[int(position)] = moved(bank[int(position)], seen, 0.5)
        torch.testing.assert_close(method.bank.rows, torch.stack(bank), rtol=1e-12, atol=1e-12)


def test_the_full_softmax_is_over_all_images() -> None:
    """Eq. 2 over the whole bank."""
    method = build("npid", negatives=None, own=False)
    for step in range(3):
        batch = batch_at(step)
        bank = method.bank.rows.clone()
        losses = []
        for view in embeddings(method, batch):
            for z, position in zip(view, batch.positions.tolist(), strict=True):
                others = [z @ bank[j] / TAU for j in range(IMAGES) if j != position]
                losses.append(cross_entropy(z @ bank[position] / TAU, others))
        assert_same_gradients(method, loss_of(method(batch), "infonce"), sum(losses) / len(losses))
        method.after_step(0.5)


@pytest.mark.parametrize("own", [True, False])
def test_a_softmax_over_samples(own) -> None:
    """Each drawn row counts as often as it was drawn; the image's own only where it may be drawn."""
    method = build("npid", negatives=4 * IMAGES, own=own)
    batch = batch_at(0)
    terms = method(batch)
    columns = terms[0].negatives.selected
    assert ((columns == batch.positions[:, None]).any()) == own
    assert all(torch.equal(term.negatives.selected, columns) for term in terms)  # whatever the view
    losses = [
        cross_entropy(z @ method.bank.rows[p] / TAU, [z @ method.bank.rows[j] / TAU for j in row])
        for view in embeddings(method, batch)
        for z, p, row in zip(view, batch.positions, columns, strict=True)
    ]
    assert_same_gradients(method, loss_of(terms, "infonce"), sum(losses) / len(losses))


@pytest.mark.parametrize("option", [{"negatives": None, "own": False}, {"negatives": 60, "own": True}])
def test_rows_of_the_own_group_do_not_count(option) -> None:
    """Known from the first update on; before, a row is not of any image."""
    method = build("npid", **option)
    known = dict[int, int]()
    for step in range(3):
        method.step = step
        groups = torch.tensor([0, 1, 1, -1, 2, 0]).roll(2 * step)
        batch = batch_at(step, groups=groups)
        terms, bank = method(batch), method.bank.rows.clone()
        positions = batch.positions.tolist()
        losses = []
        for term, view in zip(terms, embeddings(method, batch), strict=True):
            for i, (z, position) in enumerate(zip(view, positions, strict=True)):
                columns = (
                    range(IMAGES) if term.negatives.selected is None else term.negatives.selected[i].tolist()
                )
                group = int(groups[i])
                dropped = [position] if group < 0 and known.get(position) is not None else []
                if option["negatives"] is None:
                    dropped = [position]
                counted = [
                    j for j in columns if j not in dropped and not (group >= 0 and known.get(j) == group)
                ]
                losses.append(cross_entropy(z @ bank[position] / TAU, [z @ bank[j] / TAU for j in counted]))
        assert_same_gradients(method, loss_of(terms, "infonce"), sum(losses) / len(losses))
        method.after_step(0.5)
        known |= dict(zip(positions, groups.tolist(), strict=True))


def test_a_query_without_negatives_has_no_weight() -> None:
    """Nor a loss: the data has groups, and all rows are of its own."""
    method = build("npid", negatives=None, own=False)
    method.bank.groups.fill_(3)
    batch = batch_at(0, (12,), torch.tensor([3, 3, 0, 3, 3, 3]))
    (z,) = embeddings(method, batch)
    position = int(batch.positions[2])
    others = [z[2] @ row / TAU for j, row in enumerate(method.bank.rows) if j != position]
    expected = cross_entropy(z[2] @ method.bank.rows[position] / TAU, others)
    assert_same_gradients(method, loss_of(method(batch), "infonce"), expected)


def test_the_normalizer_is_estimated_once() -> None:
    """By the first batch; not again by later ones, nor after a state is loaded."""
    method, other = build("npid"), build("npid")
    method(batch_at(0))
    first = method.bank.log_normalizer.clone()
    method.after_step(0.1)
    method(batch_at(1))
    assert torch.equal(method.bank.log_normalizer, first)
    other.load_state_dict(method.state_dict())
    other(batch_at(2))
    assert torch.equal(other.bank.log_normalizer, first)


@pytest.mark.parametrize("kind", ["npid", "pirl", "cmc"])
def test_negatives_of_the_next_step_are_drawn_ahead(kind, monkeypatch) -> None:
    """The first step draws for itself and for the second, which uses that."""
    real, started = bank_module.start_drawing, []
    monkeypatch.setattr(bank_module, "start_drawing", lambda *drawn: started.append(step) or real(*drawn))
    task = task_of(build(kind))
    for step in range(2):
        train_step(task, step, training_batch(kind, {}, 16, step))
    assert started == [0, 0, 1]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="negatives=null draws none"):
        config_of("npid", negatives=None, own=True)
