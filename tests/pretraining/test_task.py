"""A method with a loss as the training loop sees it."""

import pytest
import torch

from cl.runtime.memory import growth
from tests.support.methods import batch_of, build, loss_config, task_of, train_step, views


@pytest.mark.parametrize("name", ["infonce", "dcl", "dclw"])
def test_a_step_of_simclr_holds_no_matrix_of_all_pairs(name) -> None:
    """N = 8192 images: one matrix of their embeddings' logits would take 1 GiB."""
    task = task_of(build("simclr").float(), loss_config(name))
    batch = batch_of([torch.randn(8192, 3, 8, 8) for _ in range(2)])
    train_step(task, 0, batch_of([view[:512] for view in batch.views]))  # warm-up
    assert growth(lambda: train_step(task, 0, batch)) < 200 * 2**20


@pytest.mark.parametrize(
    ("kind", "option", "count"),
    [
        ("simclr", {}, 2 * (6 - 1)),
        ("simclr", {"pool": "other_view"}, 6 - 1),
        ("simclr", {"pool": "other_view", "negatives": 3}, 3),
        ("moco", {}, 20),
        ("moco_v3", {}, 6 - 1),
        ("simo", {}, 6 - 1),
        ("simo", {"negatives": 2, "sampling": "shared"}, 2),
        ("nnclr", {}, 6 - 1),
        ("byol", {}, None),
    ],
)
def test_a_run_says_how_many_negatives_a_query_meets(kind, option, count) -> None:
    task = task_of(build(kind, **option))
    task(batch_of(views(6)))
    assert task.negatives == count
