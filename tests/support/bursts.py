"""Features of images in bursts."""

import numpy as np

CENTRES = 0.35 * np.random.default_rng(9).normal(size=(4, 32))


def made(seed: int, bursts: int, size: int, alike: float = 0.7) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 32) of bursts whose images have this correlation within a class; classes (n,)."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(bursts) % 4).repeat(size)
    shared = rng.normal(size=(bursts, 32)).repeat(size, 0)
    own = rng.normal(size=(bursts * size, 32))
    return CENTRES[labels] + alike**0.5 * shared + (1 - alike) ** 0.5 * own, labels
