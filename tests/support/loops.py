"""Comparing a method with a loop written from its paper."""

import copy
from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor, nn

from cl.methods import BaseMethod
from cl.networks.bank import Bank
from cl.networks.context import MaskedContext
from cl.objective.batch import Batch
from cl.objective.terms import Contrast
from cl.runtime.registry import module_of
from tests.support.losses import assert_same
from tests.support.methods import IMAGES, TAU, batch_of, build, loss_config, mean_loss, task_of, views

Loop = Callable[[BaseMethod, list[Tensor]], Tensor]


def cross_entropy(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """-log softmax of the positive logit among all logits, written out."""
    return (positive.exp() + torch.stack(negatives).exp().sum()).log() - positive


def nce(positive: Tensor, negatives: list[Tensor], z: Tensor) -> Tensor:
    """-log h(positive) - sum of log(1 - h(negative)), h = P / (P + K / n), P = e^s / Z."""

    def posterior(s: Tensor) -> Tensor:
        return s.exp() / z / (s.exp() / z + len(negatives) / IMAGES)

    return -posterior(positive).log() - sum((1 - posterior(s)).log() for s in negatives)


LOSSES: dict[str, Callable[[Tensor, list[Tensor], Tensor], Tensor]] = {
    "nce": nce,
    "infonce": lambda positive, negatives, z: cross_entropy(positive, negatives),
}


def normal(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def in_passes(network: Callable[[Tensor], Tensor], inputs: list[Tensor], separate: int = 0) -> list[Tensor]:
    """(N, ...) of each view: a pass for each of the first `separate`, then one for all views of a size."""
    found = [network(view) for view in inputs[:separate]]
    for _, same_size in groupby(inputs[separate:], key=lambda view: view.shape):
        together = list(same_size)
        rows = network(torch.stack(together, 1).flatten(0, 1))
        found += rows.unflatten(0, (-1, len(together))).unbind(1)
    return found


def projections(method: BaseMethod, inputs: list[Tensor], separate: int = 0) -> list[Tensor]:
    return in_passes(lambda view: method.projector(method.backbone(view)), inputs, separate)


def with_another_target(kind: str, **settings) -> BaseMethod:  # type: ignore[no-untyped-def]
    """A method whose target, if it has one, differs from the online encoder."""
    method = build(kind, **settings)
    for parameter in method.target.parameters() if getattr(method, "target", None) else []:
        parameter.data.add_(0.1)
    return method


def assert_equals_the_loop(
    method: BaseMethod, loop: Loop, sizes: tuple[int, ...] = (12, 12), *, loss: str | None = None
) -> None:
    """The mean loss over the terms and its gradients, against `loop(copy of the method, views)`.

    loss: its kind; None for the method's usual one.
    """
    other, inputs = copy.deepcopy(method), views(5, sizes=sizes)
    ours = mean_loss(method, batch_of(inputs), loss_config(loss) if loss else None)
    theirs = loop(other, inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    ours.backward()
    theirs.backward()
    for (name, a), (_, b) in zip(method.named_parameters(), other.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12, msg=name)


def assert_bank_steps(
    method: BaseMethod,
    banks: list[Bank],
    loss: str,
    embed: Callable[[BaseMethod, Batch], tuple[list[tuple[int, list[Tensor], float]], list[list[Tensor]]]],
    sizes: tuple[int, ...],
    *,
    grouped: bool,
) -> None:
    """Losses, gradients and rows of three steps against a loop over queries and rows; images come again.

    embed: the terms (number of the bank, each image's query, weight), and each bank's new embeddings.
    grouped: images have groups, known from their first step on; rows of the own group do not count.
    """
    task = task_of(method, loss_config(loss, **({"alpha": None} if loss == "infonce" else {})))
    rows, known = [[*bank.rows.clone()] for bank in banks], dict[int, int]()
    normalizers: dict[int, Tensor] = {}
    for step in range(3):
        groups = torch.tensor([0, 1, 1, -1, 0]).roll(2 * step) if grouped else None
        batch = batch_of(views(5, step, sizes), groups, first=4 * step)
        task.begin_step(step, 0.0)
        selected, ours = method(batch)[0].negatives.selected, task(batch)
        terms, new = embed(method, batch)
        positions, columns = batch.positions.tolist(), []
        own = [-1 - p if groups is None or groups[i] < 0 else int(groups[i]) for i, p in enumerate(positions)]
        for i, p in enumerate(positions):
            drawn = [j for j in range(IMAGES) if j != p] if selected is None else selected[i].tolist()
            columns.append([p, *(j for j in drawn if not (grouped and known.get(j) == own[i]))])
        logits = [
            [[q @ rows[bank][j] / TAU for j in each] for q, each in zip(queries, columns, strict=True)]
            for bank, queries, _ in terms
        ]
        if step == 0:
            for number in range(len(banks)):
                of_bank = [x for x, (bank, _, _) in zip(logits, terms, strict=True) if bank == number]
                drawn = [s.detach().exp() for term in of_bank for row in term for s in row]
                normalizers[number] = IMAGES * sum(drawn) / len(drawn)
        theirs = sum(
            weight * LOSSES[loss](positive, negatives, normalizers[bank]) / len(queries)
            for (bank, queries, weight), term in zip(terms, logits, strict=True)
            for positive, *negatives in term
        )
        assert_same_gradients(method, ours, theirs / len(terms))
        task.after_step(0.5)
        known |= dict(zip(positions, own, strict=True))
        for bank, of_bank, seen in zip(banks, rows, new, strict=True):
            for p, z in zip(positions, seen, strict=True):
                of_bank[p] = normal(0.5 * of_bank[p] + 0.5 * z.detach())
            torch.testing.assert_close(bank.rows, torch.stack(of_bank), rtol=1e-12, atol=1e-12)


def loss_of(terms: list[Contrast], name: str) -> Tensor:
    """The mean of a loss over the terms, whatever their weights."""
    config = loss_config(name, **({"alpha": None} if name == "infonce" else {}))
    loss = module_of("losses", name).loss
    return torch.stack([loss(term, config, 0.0) for term in terms]).mean()


def assert_same_gradients(method: BaseMethod, ours: Tensor, theirs: Tensor) -> None:
    """Two values, and their gradients to all that the method trains."""
    assert_same(ours, theirs, [p for p in method.parameters() if p.requires_grad])


def context_loop(network: MaskedContext, x: Tensor) -> Tensor:
    """CPC v2's masked convolutions, position by position; x is (C, rows, columns)."""
    for block in network.blocks:
        x = x + _block_loop(block, x)
    return x.clamp(min=0)


def _block_loop(block: nn.Module, x: Tensor) -> Tensor:
    """1x1 and ReLU; 1x3; two rows, the upper one zero at the top; ReLU and 1x1."""
    _, rows, columns = x.shape
    inner, beside, result = {}, {}, torch.zeros_like(x)
    for r in range(rows):
        for c in range(columns):
            inner[r, c] = (block.narrow.weight[:, :, 0, 0] @ x[:, r, c] + block.narrow.bias).clamp(min=0)
    for r in range(rows):
        for c in range(columns):
            beside[r, c] = block.across.bias
            for tap, column in enumerate((c - 1, c, c + 1)):
                if 0 <= column < columns:
                    beside[r, c] = beside[r, c] + block.across.weight[:, :, 0, tap] @ inner[r, column]
    for r in range(rows):
        for c in range(columns):
            total = block.down.weight[:, :, 1, 0] @ beside[r, c] + block.down.bias
            if r > 0:
                total = total + block.down.weight[:, :, 0, 0] @ beside[r - 1, c]
            result[:, r, c] = block.widen.weight[:, :, 0, 0] @ total.clamp(min=0) + block.widen.bias
    return result
