"""Pairs of a view and a target view, and the terms of methods without negatives."""

from torch import Tensor

from cl.objective.terms import Agreement


def pairs(views: int) -> list[tuple[int, int]]:
    """(a, b) for each of two target views b and every other view a: 2 (V - 1) pairs."""
    return [(a, b) for b in range(2) for a in range(views) if a != b]


def agreements(predictions: list[Tensor], targets: list[Tensor]) -> list[Agreement]:
    """For each of the `pairs`, E predictions per image (N, E, D) with the image's target (N, D)."""
    repeated = [target.repeat_interleave(predictions[0].shape[1], 0)[:, None] for target in targets]
    return [Agreement(predictions[a].flatten(0, 1), repeated[b]) for a, b in pairs(len(predictions))]
