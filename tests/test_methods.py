"""Frameworks: their queues, targets, batch norm and randomness; and one contract that all of them keep."""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import TinyBackbone
from torch import Tensor, nn

from cl import heads, machine, tasks
from cl.batch_norm import GroupBatchNorm, set_groups
from cl.config import kinds, module_of
from cl.losses import dcl
from cl.methods import moco, simclr

PROJECTOR = heads.Config(hidden=[7], out=5, norm=True, norm_last=False)
SETTINGS = {
    "simclr": {},
    "moco": {"queue": 20, "momentum": 0.9, "shuffle": True},
}


def build(kind: str, *, bn_groups: int = 1, seed: int = 0, **settings):  # type: ignore[no-untyped-def]
    """A method with the tiny encoder, in float64."""
    torch.manual_seed(seed)
    module = module_of("methods", kind)
    config = module.Config(kind=kind, projector=PROJECTOR, scale=1.0, **{**SETTINGS[kind], **settings})
    return module.Method(config, TinyBackbone(), 0.2, bn_groups=bn_groups, seed=seed).double()


def views(n: int, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 3, 9, 9, generator=rng, dtype=torch.float64) for _ in range(2)]


def test_simclr_equals_its_algorithm() -> None:
    """Both views in one pass; the positive of a view is the other view of its image; all other views are negatives."""
    method = build("simclr")
    reference = copy.deepcopy(method)
    first, second = views(4)
    (contrast,) = method([first, second])
    rows = torch.stack([first, second], 1).flatten(0, 1)
    z = F.normalize(reference.projector(reference.backbone(rows)), dim=1)
    losses = []
    for image in range(4):
        for view in range(2):
            anchor, positive = z[2 * image + view], z[2 * image + 1 - view]
            others = [z[2 * j + v] for j in range(4) if j != image for v in range(2)]
            losses.append(torch.stack([anchor @ o / 0.2 for o in others]).exp().sum().log() - anchor @ positive / 0.2)
    torch.testing.assert_close(dcl.loss(contrast, dcl.Config(kind="dcl"), 0.0), torch.stack(losses).mean())


def test_moco_equals_its_algorithm() -> None:
    """Three steps of Algorithm 1 in a plain loop: query, key, queue as a list, target as an average."""
    method = build("moco", shuffle=False)
    online = nn.Sequential(copy.deepcopy(method.backbone), copy.deepcopy(method.projector))
    target = copy.deepcopy(online)
    queue = list(method.queue.clone())
    for step in range(3):
        first, second = views(6, seed=step)
        optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], 0.1)
        reference_optimizer = torch.optim.SGD(online.parameters(), 0.1)
        (contrast,) = method([first, second])
        ours = dcl.loss(contrast, dcl.Config(kind="dcl"), 0.0)
        queries = F.normalize(online(first), dim=1)
        with torch.no_grad():
            keys = F.normalize(target(second), dim=1)
        losses = [
            torch.stack([q @ n / 0.2 for n in queue]).exp().sum().log() - q @ k / 0.2
            for q, k in zip(queries, keys, strict=True)
        ]
        theirs = torch.stack(losses).mean()
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
        assert all(p.is_leaf and not p.requires_grad for p in method.target.parameters())
        start = int(method.oldest)
        torch.testing.assert_close(torch.cat([method.queue[start:], method.queue[:start]]), torch.stack(queue))


@pytest.mark.parametrize("sizes", [[3, 3, 3], [7, 2, 9, 1], [10], [25], [4, 25, 3]])
def test_the_queue_takes_any_batch(sizes) -> None:
    """A ring of ten against a list; batches that do not divide it, and batches larger than it."""
    method = build("moco", queue=10)
    expected = list(method.queue.clone())
    for number, size in enumerate(sizes):
        keys = F.normalize(torch.randn(size, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(number)), dim=1)
        method._enqueue(keys)
        expected = (expected + list(keys))[-10:]
        start = int(method.oldest)
        assert torch.equal(torch.cat([method.queue[start:], method.queue[:start]]), torch.stack(expected))


def test_no_gradient_reaches_keys_queue_or_target() -> None:
    method = build("moco")
    (contrast,) = method(views(6))
    assert not contrast.positives.requires_grad
    assert not contrast.negatives.requires_grad
    dcl.loss(contrast, dcl.Config(kind="dcl"), 0.0).backward()
    assert all(p.grad is None for p in method.target.parameters())
    assert all(p.grad is not None for p in method.backbone.parameters())


def test_shuffled_keys_are_the_keys_of_shuffled_groups() -> None:
    """ShuffleBN: other images share the statistics, and every key comes back to its image."""
    shuffled, plain = build("moco", bn_groups=3, shuffle=True), build("moco", bn_groups=3, shuffle=False)
    images = views(12)[1]
    order = torch.randperm(12, generator=shuffled.generator())
    expected = torch.empty(12, 5, dtype=torch.float64)
    expected[order] = plain._encode_keys(images[order])
    torch.testing.assert_close(shuffled._encode_keys(images), expected)
    assert not torch.allclose(expected, build("moco", bn_groups=3, shuffle=False)._encode_keys(images))


def test_group_batch_norm_is_batch_norm_of_each_group() -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(4).double()
    with torch.no_grad():
        plain.weight.uniform_(), plain.bias.uniform_()
    grouped = GroupBatchNorm(copy.deepcopy(plain), 3)
    x = torch.randn(12, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    parts = [copy.deepcopy(plain) for _ in range(3)]
    expected = torch.cat([norm(part) for norm, part in zip(parts, x.chunk(3), strict=True)])
    torch.testing.assert_close(grouped(x), expected)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(grouped, name), torch.stack([getattr(n, name) for n in parts]).mean(0))
    torch.testing.assert_close(
        torch.autograd.grad(grouped(x).square().sum(), x)[0], torch.autograd.grad(expected.square().sum(), x)[0]
    )
    plain.load_state_dict(grouped.state_dict())
    torch.testing.assert_close(grouped.eval()(x), plain.eval()(x))


def test_one_group_leaves_batch_norm_alone() -> None:
    module = TinyBackbone()
    set_groups(module, 1)
    assert type(module.bn) is nn.BatchNorm2d
    set_groups(module, 2)
    assert type(module.bn) is GroupBatchNorm


@pytest.mark.parametrize("bn_groups", [1, 2])
@pytest.mark.parametrize("kind", kinds("methods"))
def test_every_method_trains_saves_and_continues_equal(kind, bn_groups) -> None:
    """Two steps, a copy through the state dict, one more step of both: the same weights bit for bit."""
    here = machine.Machine(torch.device("cpu"), 0, "fp32")

    def task() -> tasks.Contrastive:
        return tasks.Contrastive(build(kind, bn_groups=bn_groups), dcl, dcl.Config(kind="dcl"), 1.0, here)

    def step(one: tasks.Contrastive, number: int) -> None:
        one.begin_step(number, number / 10)
        loss = one(views(4 + 2 * (number % 2), seed=number), torch.zeros(0))
        loss.backward()
        with torch.no_grad():
            for p in one.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
                    p.grad = None
        one.after_step((number + 1) / 10)

    first = task()
    before = copy.deepcopy(first.state_dict())
    for number in range(2):
        step(first, number)
    second = task()
    second.load_state_dict(first.state_dict())
    for one in (first, second):
        step(one, 2)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert any(not torch.equal(before[name], tensor) for name, tensor in first.state_dict().items())


@pytest.mark.parametrize("kind", kinds("methods"))
def test_every_method_runs_in_bfloat16(kind) -> None:
    here = machine.Machine(torch.device("cpu"), 0, "bf16")
    task = tasks.Contrastive(build(kind).float(), dcl, dcl.Config(kind="dcl"), 1.0, here)
    loss = task([view.float() for view in views(4)], torch.zeros(0))
    assert loss.dtype == torch.float32
    loss.backward()
    task.after_step(0.1)
    assert torch.isfinite(loss)


GOLDEN = {
    "simclr": 2.653260499947966,
    "moco": 3.046796680126469,
}


@pytest.mark.parametrize("kind", kinds("methods"))
def test_golden(kind) -> None:
    """Ten steps in float64; a refactoring leaves the last loss as it was."""
    method = build(kind, bn_groups=2)
    here = machine.Machine(torch.device("cpu"), 0, "fp32")
    task = tasks.Contrastive(method, dcl, dcl.Config(kind="dcl"), 1.0, here)
    optimizer = torch.optim.SGD([p for p in task.parameters() if p.requires_grad], 0.05, momentum=0.9)
    for number in range(10):
        task.begin_step(number, number / 10)
        loss = task(views(8, seed=number), torch.zeros(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        task.after_step((number + 1) / 10)
    assert float(loss.detach()) == pytest.approx(GOLDEN[kind], rel=1e-10)


def test_heads_have_the_layers_asked_for() -> None:
    layers = heads.build(heads.Config(hidden=[4, 6], out=3, norm=True, norm_last=True), 8)
    assert [type(layer).__name__ for layer in layers] == [
        *["Linear", "BatchNorm1d", "ReLU"] * 2,
        "Linear",
        "BatchNorm1d",
    ]
    assert [layer.bias is None for layer in layers if isinstance(layer, nn.Linear)] == [True, True, True]
    plain = heads.build(heads.Config(hidden=[4], out=3, norm=False, norm_last=False), 8)
    assert [type(layer).__name__ for layer in plain] == ["Linear", "ReLU", "Linear"]
    assert all(layer.bias is not None for layer in plain if isinstance(layer, nn.Linear))


def test_moco_and_simclr_say_how_many_negatives_there_are() -> None:
    here = machine.Machine(torch.device("cpu"), 0, "fp32")
    for method, count in ((build("simclr"), 2 * (6 - 1)), (build("moco"), 20)):
        task = tasks.Contrastive(method, dcl, dcl.Config(kind="dcl"), 1.0, here)
        task(views(6), torch.zeros(0))
        assert task.negatives == count
    assert simclr.Config.gives_negatives
    assert moco.Config.gives_negatives
