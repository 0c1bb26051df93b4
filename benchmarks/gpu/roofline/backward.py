"""The backward pass of tensors on a GPU that is not there."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.checkpoint import GraphExecGroup


@torch.no_grad()
def backward(loss: Tensor) -> None:
    """`loss.backward()` without streams, which PyTorch's engine asks of a GPU; frees the graph as it goes.

    PyTorch's formulas run, in the order of its engine. Hooks do not.
    """
    with GraphExecGroup():  # a checkpointed part is computed again once, not for each tensor that it saved
        _backward(loss)


def _backward(loss: Tensor) -> None:
    root = loss.grad_fn
    assert root is not None
    expected = _edges_to_each(root)
    found: dict[Node, list[Tensor | None]] = {root: [torch.ones_like(loss)]}
    loss.detach_()
    ready = [root]
    owners: dict[Node, Any] = {}  # what keeps a function in Python alive: the node before it
    del root
    while ready:
        ready.sort(key=lambda node: node._sequence_nr())
        node = ready.pop()
        del expected[node]
        owner = owners.pop(node, None)
        gradients = found.pop(node)
        if hasattr(node, "variable"):
            _accumulate(node.variable, gradients[0])
            continue
        for (after, number), gradient in _outputs(node, gradients):
            inputs = found.setdefault(after, [None] * len(after._input_metadata))
            if hasattr(after, "apply"):
                owners[after] = node, owner
            if gradient is not None:
                gradient = _fitting(gradient, after._input_metadata[number])
                before = inputs[number]
                inputs[number] = gradient if before is None else before + gradient
            expected[after] -= 1
            if not expected[after]:
                ready.append(after)


def _edges_to_each(root: Node) -> Counter[Node]:
    """How many edges lead to each node of the graph."""
    expected, stack = Counter({root: 0}), [root]
    while stack:
        for after, _ in stack.pop().next_functions:
            if after is not None:
                if after not in expected:
                    stack.append(after)
                expected[after] += 1
    return expected


def _outputs(node: Node, gradients: list[Tensor | None]) -> Iterator[tuple[tuple[Node, int], Tensor | None]]:
    """The edges of a node, and the gradient that goes along each."""
    call: Any = getattr(node, "apply", node)  # a function in Python, or one of PyTorch's
    results = call(*gradients)
    results = results if isinstance(results, tuple) else (results,)
    edges = node.next_functions
    if call is not node:  # a function in Python returns None for arguments that are not tensors
        results = [x for x, wanted in zip(results, node.needs_input_grad, strict=True) if wanted]  # type: ignore[attr-defined]
        edges = tuple(edge for edge in edges if edge[0] is not None)
    for (after, number), gradient in zip(edges, results, strict=True):
        if after is not None:
            yield (after, number), gradient


def _fitting(gradient: Tensor, form: Any) -> Tensor:
    """The gradient, summed over dimensions that were broadcast, in the type of what it belongs to."""
    if gradient.shape != form.shape:
        gradient = gradient.sum_to_size(form.shape)
    return gradient if gradient.dtype == form.dtype else gradient.to(form.dtype)


def _accumulate(parameter: Tensor, gradient: Tensor | None) -> None:
    if gradient is None:
        return
    if parameter.grad is not None:
        parameter.grad += gradient
        return
    strides = zip(parameter.shape, gradient.stride(), parameter.stride(), strict=True)
    if any(size > 1 and found != expected for size, found, expected in strides):
        gradient = torch.empty_like(parameter).copy_(gradient)
    parameter.grad = gradient
