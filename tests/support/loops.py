"""Comparing a method with a loop written from its paper."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from cl.methods import BaseMethod
from tests.support.methods import batch_of, build, loss_config, mean_loss, views

Loop = Callable[[BaseMethod, list[Tensor]], Tensor]


def cross_entropy(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    """-log softmax of the positive logit among all logits, written out."""
    return (positive.exp() + torch.stack(negatives).exp().sum()).log() - positive


def normal(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


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
