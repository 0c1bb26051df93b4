"""The losses of one query as their papers write them, and a comparison of gradients."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from cl.objective.terms import Contrast

TAU = 0.2
Logits = tuple[Tensor, Tensor]  # of a query's positives (P,) and negatives (K,)


def sigmoid(p: Tensor, k: Tensor, t: float | Tensor) -> Tensor:
    """SigLIP, section 3.2, with bias -log K: each pair is classified by itself."""
    accepted, rejected = (1 / (1 + (math.log(len(k)) - logits).exp()) for logits in (p, k))
    return -accepted.log() - (1 - rejected).log().sum()


def debiased(p: Tensor, k: Tensor, t: float | Tensor, tau: float = 0.1, beta: float = 0.0) -> Tensor:
    """-log e^s / (e^s + n g), g = max((weighted mean of e^s_k - tau+ mean e^s) / (1 - tau+), e^(-1 / t)).

    The weight of a negative is exp(beta s_k), divided by the mean weight; 1 for the debiased loss (beta 0).
    """
    weights = (beta * k).exp() / (beta * k).exp().mean()
    g = ((weights * k.exp()).mean() - tau * p.exp().mean()) / (1 - tau)
    return (p.exp() + len(k) * g.clamp(min=(-1 / torch.as_tensor(t)).exp())).log() - p


def invariant_spread(p: Tensor, k: Tensor, t: float | Tensor) -> Tensor:
    """Recognise the positive among all, and reject each negative."""
    total = p.exp() + k.exp().sum()
    return total.log() - p - (1 - k.exp() / total[:, None]).log().sum(1)


# Losses of a query at temperature t: (P,) or a scalar. EqCo, eq. 1: alpha / K; JCL, eq. S.3: strength 4.
FORMULAS: dict[str, Callable[[Tensor, Tensor, float | Tensor], Tensor]] = {
    "infonce": lambda p, k, t: (p.exp() + k.exp().sum()).log() - p,
    "eqco": lambda p, k, t: (p.exp() + 65536 / len(k) * k.exp().sum()).log() - p,
    "dcl": lambda p, k, t: k.exp().sum().log() - p,
    "jcl": lambda p, k, t: ((p.mean() + 2 * p.var(unbiased=False)).exp() + k.exp().sum()).log() - p.mean(),
    "sigmoid": sigmoid,
    "debiased": debiased,
    "hard": lambda p, k, t: debiased(p, k, t, 0.2, 0.7),
    "invariant_spread": invariant_spread,
}


def reference(name: str, queries: Iterable[Logits], t: float | Tensor) -> Tensor:
    """The mean of a loss over queries. The weights of "dclw" (DCL, eq. 6) have no gradient."""
    if name != "dclw":
        return torch.stack([FORMULAS[name](p, k, t) for p, k in queries]).mean()
    queries = list(queries)
    agreement = torch.stack([(p * t / 0.5).exp() for p, _ in queries])
    weights = (2 - agreement / agreement.mean(0)).detach()
    losses = [k.exp().sum().log() - w * p for w, (p, k) in zip(weights, queries, strict=True)]
    return torch.stack(losses).mean()


def logits_of(contrast: Contrast) -> Iterator[Logits]:
    """Those of each query, one by one, without the columns that it excludes."""
    rows, excluded = contrast.negatives.rows, contrast.negatives.excluded
    for i, query in enumerate(contrast.queries):
        counted = [j for j in range(len(rows)) if excluded is None or j not in excluded[i]]
        yield (
            contrast.positives[i] @ query / contrast.temperature,
            rows[counted] @ query / contrast.temperature,
        )


def assert_same(ours: Tensor, theirs: Tensor, leaves: Sequence[Tensor]) -> None:
    """Two values, and their gradients to the leaves."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(value, leaves, retain_graph=True) for value in (ours, theirs))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
