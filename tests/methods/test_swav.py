"""SwAV against a loop written from its algorithm; its queue; frozen prototypes."""

import copy

import pytest
import torch
from torch import Tensor

from cl.methods import BaseMethod
from cl.methods._shared import prototypes
from tests.support.loops import assert_equals_the_loop, normal, projections
from tests.support.methods import TAU, batch_of, build, mean_loss, task_of, views

EPSILON, ITERATIONS = 0.05, 3


def sinkhorn(scores: Tensor) -> Tensor:
    """(B, K): Q = exp(scores / epsilon)', then rows and columns are divided by their sums in turn."""
    q = (scores / EPSILON).exp().T
    k, b = q.shape
    q = q / q.sum()
    for _ in range(ITERATIONS):
        q = torch.stack([row / row.sum() / k for row in q])
        q = torch.stack([column / column.sum() / b for column in q.T], 1)
    return (q * b).T


def swapped_prediction(z: list[Tensor], prototypes: Tensor, codes: list[Tensor]) -> Tensor:
    """1/2 sum over codes i of 1/(V - 1) sum over views v != i of -mean_b sum_k q_ik log softmax(s_v/tau)."""
    total = torch.zeros((), dtype=torch.float64)
    for i, q in enumerate(codes):
        for v, rows in enumerate(z):
            if v != i:
                for b, row in enumerate(rows):
                    scores = [row @ c / TAU for c in prototypes]
                    log_sum = torch.stack(scores).exp().sum().log()
                    term = sum(q[b, k] * (score - log_sum) for k, score in enumerate(scores))
                    total = total - term / len(rows) / (len(z) - 1) / 2
    return total


def swav_loop(method: BaseMethod, inputs: list[Tensor]) -> Tensor:
    z = [normal(x) for x in projections(method, inputs)]
    codes = [sinkhorn((x @ method.prototypes.T).detach()) for x in z[:2]]
    return swapped_prediction(z, method.prototypes, codes)


@pytest.mark.parametrize("sizes", [(12, 12), (12, 12, 8, 8)])
def test_swav_equals_its_algorithm(sizes) -> None:
    """Value and gradients of encoder and prototypes, with the decoupled loss."""
    assert_equals_the_loop(build("swav", frozen_epochs=0), swav_loop, sizes)


def test_codes_use_prototypes_equally_and_survive_large_scores() -> None:
    """Many iterations make columns equal; in logarithms, scores that overflow exp do no harm."""
    ours = prototypes.sinkhorn
    scores = torch.randn(12, 4, dtype=torch.float64)
    everything = torch.ones(12, dtype=torch.bool)
    (found,) = ours(scores[None] / EPSILON, everything, 3)
    torch.testing.assert_close(found, sinkhorn(scores))
    (codes,) = ours(scores[None], everything, 200)
    torch.testing.assert_close(codes.sum(0), torch.full((4,), 3.0, dtype=torch.float64))
    torch.testing.assert_close(codes.sum(1), torch.ones(12, dtype=torch.float64))
    (large,) = ours((1e4 * scores[None]).float(), everything, 3)
    assert torch.isfinite(large).all()
    torch.testing.assert_close(large.sum(1), torch.ones(12))


def test_steps_with_a_queue_equal_a_loop() -> None:
    """From its epoch on and when full, the queue's rows get codes with the batch; each view has its own."""
    method = build("swav", frozen_epochs=0, queue=12, queue_epoch=1)
    other, queues = copy.deepcopy(method), ([], [])
    used = []
    for step, epoch in enumerate([0, 1, 1, 1]):
        method.begin_epoch(epoch)
        inputs = views(5, seed=step)
        ours = mean_loss(method, batch_of(inputs))
        z = [normal(x) for x in projections(other, inputs)]
        codes, full = [], epoch >= 1 and len(queues[0]) >= 12
        for x, queue in zip(z, queues, strict=True):
            rows = torch.stack([*x.detach(), *(queue[-12:] if full else [])])
            codes.append(sinkhorn(rows @ other.prototypes.detach().T)[:5])
            queue += list(x.detach())
        used.append(full)
        theirs = swapped_prediction(z, other.prototypes, codes)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        for trained, loss in ((method, ours), (other, theirs)):
            parameters = list(trained.parameters())
            with torch.no_grad():
                for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    p -= 0.1 * gradient
        method.after_step((step + 1) / 4)
        with torch.no_grad():
            other.prototypes.copy_(normal(other.prototypes))
    assert used == [False, False, False, True]


@pytest.mark.parametrize("kind", ["swav", "dino"])
def test_the_optimizer_leaves_out_prototypes_in_the_first_epochs(kind) -> None:
    """AdamW's first step afterwards has the size of its rate; a resumed run is in the same epoch."""
    task, resumed = (task_of(build(kind, frozen_epochs=2)) for _ in range(2))
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], 0.01, weight_decay=0.5)
    weights, encoder = task.method.prototypes, task.method.backbone.fc.weight
    for step, frozen in enumerate([True, True, False]):
        before, encoder_before = weights.detach().clone(), encoder.detach().clone()
        task.begin_epoch(step)
        task.begin_step(step, step / 3)
        resumed.load_state_dict(task.state_dict())
        for each in (resumed, task):
            each(batch_of(views(6, seed=step))).backward()
            assert (each.method.prototypes.grad is None) == frozen
        expected = before if frozen else before * (1 - 0.01 * 0.5) - 0.01 * weights.grad.sign()
        optimizer.step()
        assert (weights in optimizer.state) != frozen
        optimizer.zero_grad()
        task.after_step((step + 1) / 3)
        expected = normal(expected) if kind == "swav" else expected
        torch.testing.assert_close(weights.detach(), expected, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(encoder, encoder_before)
