"""SimCLR's contrast of two views, its logits one by one, and a comparison with loops from papers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast

TAU = 0.2


def assert_same(ours: Tensor, theirs: Tensor, leaves: Sequence[Tensor]) -> None:
    """Two values, and their gradients to the leaves."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(value, leaves, retain_graph=True) for value in (ours, theirs))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def simclr(first: Tensor, second: Tensor, temperature: float = TAU) -> Contrast:
    """SimCLR's contrast, rows grouped by view."""
    z = torch.cat([first, second])
    itself = torch.arange(len(z))
    other = itself.roll(len(first))
    negatives = Negatives(z, excluded=torch.stack([itself, other], 1))
    return Contrast(z, z[other, None], negatives, temperature)


def pairs(first: Tensor, second: Tensor):  # type: ignore[no-untyped-def]
    """For every anchor of SimCLR the logits of its positive and of its 2(N - 1) negatives."""
    views = (first, second)
    for k in range(2):
        for i in range(len(first)):
            anchor = views[k][i]
            negatives = [anchor @ views[v][j] / TAU for v in range(2) for j in range(len(first)) if j != i]
            yield anchor @ views[1 - k][i] / TAU, torch.stack(negatives)
