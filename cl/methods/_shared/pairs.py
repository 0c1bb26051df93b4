"""Pairs of a view and a target view."""

from torch import Tensor

from cl.objective.terms import Agreement


def pairs(views: int, targets: int = 2) -> list[tuple[int, int]]:
    """(a, b) for every view a and every target view b of another crop: 2 (V - 1) pairs for two targets."""
    return [(a, b) for b in range(targets) for a in range(views) if a != b]


def agreement(predictions: Tensor, targets: Tensor) -> Agreement:
    """E predictions per image (N, E, D) with the image's target (N, D)."""
    repeated = targets.repeat_interleave(predictions.shape[1], 0)
    return Agreement(predictions.flatten(0, 1), repeated[:, None])
