"""MoCo against its Algorithm 1; JCL's keys; ShuffleBN."""

import copy

import torch
from torch import nn

from cl.networks.target import Ema
from cl.runtime.registry import module_of
from tests.support.loops import cross_entropy, in_passes, normal
from tests.support.methods import TAU, batch_of, build, task_of, usual_loss, views


def test_moco_equals_its_algorithm() -> None:
    """Three steps of Algorithm 1 in a plain loop: query, key, queue as a list, target as an average."""
    method = build("moco", shuffle=False, ema=Ema(momentum=0.9, schedule="constant"))
    online = nn.Sequential(copy.deepcopy(method.backbone), copy.deepcopy(method.projector))
    target = copy.deepcopy(online)
    queue = list(method.queue.rows.clone())
    loss = usual_loss("moco")
    for step in range(3):
        first, second = views(6, seed=step)
        optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], 0.1)
        reference_optimizer = torch.optim.SGD(online.parameters(), 0.1)
        (contrast,) = method(batch_of([first, second]))
        ours = module_of("losses", loss.kind).loss(contrast, loss, 0.0)
        queries = normal(online(first))
        keys = normal(target(second)).detach()
        theirs = torch.stack(
            [
                cross_entropy(q @ k / TAU, [q @ n / TAU for n in queue])
                for q, k in zip(queries, keys, strict=True)
            ]
        ).mean()
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
        ours.backward()
        theirs.backward()
        optimizer.step()
        reference_optimizer.step()
        method.after_step(0.0)
        with torch.no_grad():
            for t, o in zip(target.parameters(), online.parameters(), strict=True):
                t.copy_(0.9 * t + 0.1 * o)
        queue = queue[len(keys) :] + list(keys)
        start = int(method.queue.oldest)
        torch.testing.assert_close(
            torch.cat([method.queue.rows[start:], method.queue.rows[:start]]), torch.stack(queue)
        )


def test_symmetric_moco_is_both_directions() -> None:
    """The loss is the mean of the two asymmetric ones, and both key sets are queued."""
    method, forth, back = build("moco", symmetric=True), build("moco"), build("moco")
    first, second = views(6)
    config = usual_loss("moco")
    loss = module_of("losses", config.kind).loss
    ours = [loss(c, config, 0.0) for c in method(batch_of([first, second]))]
    theirs = [
        loss(c, config, 0.0)
        for m, v in ((forth, [first, second]), (back, [second, first]))
        for c in m(batch_of(v))
    ]
    torch.testing.assert_close(torch.stack(ours), torch.stack(theirs))
    method.after_step(1.0)
    torch.testing.assert_close(method.queue.rows[:6], forth._new[0])
    torch.testing.assert_close(method.queue.rows[6:12], back._new[0])


def test_all_views_after_the_first_are_keys() -> None:
    """JCL's keys: encoded in one pass, contrasted together, and their mean, not normalised, is queued."""
    method = build("moco", keys="rest", shuffle=False)
    inputs = views(4, sizes=(12, 12, 12, 12))
    (contrast,) = method(batch_of(inputs))
    keys = normal(torch.stack(in_passes(method.target, inputs[1:]), 1))
    torch.testing.assert_close(contrast.positives, keys)
    method.after_step(1.0)
    torch.testing.assert_close(method.queue.rows[:4], keys.mean(1))
    assert (method.queue.rows.norm(dim=1) <= 1 + 1e-6).all()


def test_shuffling_and_queueing_draw_different_random_numbers() -> None:
    """The keys that a small queue keeps do not all come from one group of batch norm."""
    method = build("moco", bn_groups=3, queue=3)
    several = 0
    for step in range(20):
        method.step = step
        method(batch_of(views(9, seed=step)))
        order = method.shuffled(9, "keys 1").tolist()
        method.after_step(1.0)
        kept = [int((method._new[0] == row).all(1).nonzero()) for row in method.queue.rows]
        several += len({order.index(image) // 3 for image in kept}) > 1
    assert several > 15


def test_shuffled_keys_are_the_keys_of_shuffled_groups() -> None:
    """ShuffleBN: other images share the statistics, and every key comes back to its image."""
    for kind in ("moco", "simo"):
        shuffled, plain = (task_of(build(kind, bn_groups=3, shuffle=s)).method for s in (True, False))
        inputs = views(12)
        order = shuffled.shuffled(12, "keys 1" if kind == "moco" else "keys")
        expected = torch.empty(12, 5, dtype=torch.float64)
        expected[order] = normal(plain.target(inputs[1][order]))
        torch.testing.assert_close(shuffled(batch_of(inputs))[0].positives[:, 0], expected)
        unshuffled = task_of(build(kind, bn_groups=3, shuffle=False)).method
        assert not torch.allclose(expected, unshuffled(batch_of(inputs))[0].positives[:, 0])
