"""Votes of nearest neighbours."""

import torch
from torch import Tensor


def vote(
    queries: Tensor, bank: Tensor, labels: Tensor, classes: int, *, k: int, temperature: float, memory: int
) -> tuple[Tensor, Tensor]:
    """Votes of the k nearest of the bank, block by block within the memory bound.

    v_c = sum over the k nearest b of class c of exp((q . b - q . nearest) / temperature): the usual weights over that of the
    nearest, so that no temperature overflows.

    Args:
        queries: (Q, D) unit rows.
        bank: (B, D) unit rows, of classes `labels` (B,).
        memory: bound on the similarities held at a time, MiB.

    Returns:
        Votes (Q, classes) and the positions (Q, k) of the neighbours in the bank, nearest first.

    Raises:
        ValueError: the bank is smaller than k.
    """
    if k > len(bank):
        raise ValueError(f"kNN with k={k} needs as many labelled training images, there are {len(bank)}")
    rows = max(1, memory * 2**20 // (len(bank) * bank.element_size()))
    votes, nearest = [], []
    for block in queries.split(rows):
        similarity, position = (block @ bank.T).topk(k, dim=1)  # (rows, k)
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        votes.append(weight.new_zeros(len(block), classes).scatter_add_(1, labels[position], weight))
        nearest.append(position)
    return torch.cat(votes), torch.cat(nearest)


def top1(predicted: Tensor, labels: Tensor) -> float:
    """Percentage of (n,) predictions that equal the labels."""
    return 100 * float((predicted == labels).float().mean())
