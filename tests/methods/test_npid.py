"""NPID against loops written from its paper and its authors' settings."""

import pytest
import torch

from cl.methods import BaseMethod
from cl.networks import bank as bank_module
from cl.objective.batch import Batch
from tests.support.loops import assert_bank_steps, normal
from tests.support.methods import (
    IMAGES,
    batch_of,
    build,
    task_of,
    train_step,
    training_batch,
    views,
)


def terms_of(method: BaseMethod, batch: Batch):  # type: ignore[no-untyped-def]
    """Every view; the normalised mean of the first two is remembered."""
    found = [normal(method.projector(method.backbone(view))) for view in batch.views]
    seen = normal(sum(found[:2]) / len(found[:2]))  # type: ignore[arg-type]
    return [(0, list(view), 1.0) for view in found], [list(seen)]


@pytest.mark.parametrize("sizes", [(12,), (12, 12), (12, 12, 8)], ids=len)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("loss", "negatives", "own"),
    [("nce", 7, True), ("infonce", 4 * IMAGES, True), ("infonce", 60, False), ("infonce", None, False)],
)
def test_npid_equals_a_loop(loss, negatives, own, grouped, sizes) -> None:
    """Eqs. 5 to 7: P = e^s / Z, h = P / (P + K / n), Z from the first batch; or a softmax, eq. 2 over all."""
    method = build("npid", negatives=negatives, own=own)
    assert_bank_steps(method, [method.bank], loss, terms_of, sizes, grouped=grouped)


@pytest.mark.parametrize("own", [True, False])
def test_an_image_draws_its_own_row_only_where_it_may(own) -> None:
    batch = batch_of(views(6, sizes=(12, 12)))
    first, second = build("npid", negatives=4 * IMAGES, own=own)(batch)
    assert (first.negatives.selected == batch.positions[:, None]).any() == own
    assert torch.equal(first.negatives.selected, second.negatives.selected), "whatever the view"


def test_the_normalizer_is_estimated_once() -> None:
    """By the first batch; not again by later ones, nor after a state is loaded."""
    method, other = build("npid"), build("npid")
    method(training_batch("npid", {}, 6, 0))
    first = method.bank.log_normalizer.clone()
    method.after_step(0.1)
    method(training_batch("npid", {}, 6, 1))
    assert torch.equal(method.bank.log_normalizer, first)
    other.load_state_dict(method.state_dict())
    other(training_batch("npid", {}, 6, 2))
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
