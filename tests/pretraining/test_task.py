"""A method with a loss as the training loop sees it."""

from dataclasses import replace

import pytest
import torch

from benchmarks.memory import growth
from cl.methods import Setup
from cl.networks import backbones
from cl.networks.backbones import resnet
from cl.networks.passes import encode_in_microbatches
from cl.runtime.registry import module_of
from cl.training.tasks import Task
from tests.support.methods import (
    HERE,
    WHOLE,
    batch_of,
    build,
    config_of,
    loss_config,
    task_of,
    train_step,
    views,
)


@pytest.mark.parametrize(
    "name", ["dclw", *(pytest.param(name, marks=pytest.mark.slow) for name in ("infonce", "dcl"))]
)
def test_a_step_of_simclr_holds_no_matrix_of_all_pairs(name) -> None:
    """N = 4096 images: one matrix of their embeddings' logits would take 256 MiB."""
    task = task_of(build("simclr").float(), loss_config(name))
    batch = batch_of([torch.randn(4096, 3, 8, 8) for _ in range(2)])
    train_step(task, 0, batch_of([view[:512] for view in batch.views]))  # warm-up
    assert growth(lambda: train_step(task, 0, batch)) < 100 * 2**20


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
        ("swav", {}, None),
    ],
)
def test_a_run_says_how_many_images_are_negatives_of_a_query(kind, option, count) -> None:
    """Also if it resumes after its last step."""
    task, resumed = task_of(build(kind, **option)), task_of(build(kind, **option))
    task(batch_of(views(6)))
    resumed.load_state_dict(task.state_dict())
    assert task.negatives == resumed.negatives == count


def test_a_temperature_is_advised_only_where_there_is_one() -> None:
    assert task_of(build("simclr")).remedy.endswith("or raise the temperature")
    for task in (task_of(build("byol")), Task(HERE)):
        assert "base_lr" in task.remedy and "temperature" not in task.remedy


def test_terms_count_by_their_weights(monkeypatch) -> None:
    """The sum of weight times loss over the terms, divided by their number."""
    task = task_of(build("moco", symmetric=True))
    batch = batch_of(views(6))
    terms = task.method(batch)
    first, second = (task.loss(term, task.loss_config, 0.0) for term in terms)
    weighted = [replace(term, weight=weight) for term, weight in zip(terms, (0.5, 3.0), strict=True)]
    monkeypatch.setattr(task.method, "forward", lambda batch: weighted)
    torch.testing.assert_close(task(batch), (0.5 * first + 3 * second) / 2)


def test_microbatches_hold_the_activations_of_one_at_a_time() -> None:
    """A narrow ResNet-10, 32 images of 32 px: eight microbatches take less than half of the memory."""
    images = [torch.randn(32, 3, 32, 32) for _ in range(2)]

    def taken(microbatches: int) -> int:
        torch.manual_seed(0)
        network = resnet.Config(
            kind="resnet", name="resnet10", width=0.125, stem="small", zero_init_residual=False
        )
        setup = Setup(backbones.build(network), 0.1, WHOLE, 8, 0, 32)
        method = module_of("methods", "simclr").Method(config_of("simclr"), setup)
        encode_in_microbatches(method, microbatches)
        task = task_of(method, loss_config("dcl"))
        task(batch_of([view[:8] for view in images])).backward()  # the gradients' memory
        return growth(lambda: task(batch_of(images)).backward())

    assert taken(8) < taken(1) / 2
