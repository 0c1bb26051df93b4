"""Which images the features of two encoders classify correctly, by several measures."""

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.features.scores import checked, knn_correct, linear_correct

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Pair = tuple[ArrayLike | Tensor, ...]  # of one encoder, or of A and B

SHOTS = 1, 4, 16  # labelled images per class
DRAWS = 200  # of these images
SPREAD = 1e-9  # mean squared distance of unit features from their mean; less is rounding


def correctness(
    train: "Pair",
    train_labels: "ArrayLike | Tensor",
    val: "Pair",
    val_labels: "ArrayLike | Tensor",
    *,
    k: int = 20,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """How often each validation image is classified correctly with the features of A and of B, in percent.

    kNN and logistic regression are those of `knn_accuracy` and `linear_probe`, and learn from all training
    images. The other measures learn from 1, 4 or 16 images per class (`few_shot`), and are means over 200
    draws of these images, the same for A and B. A number that some class does not have is left out.

    `train` has the features of N images by A and by B, (N, D_A) and (N, D_B), `val` those of M images. At
    most N neighbours vote. Each measure gives (M, 2).

    Raises:
        ValueError: the shapes do not fit, all training images have one label, or features are not finite.
    """
    known = np.asarray(train_labels)
    k, drawn = min(k, len(known)), {shots: draws(known, shots, seed) for shots in SHOTS}
    both = []
    for bank, queries in zip(train, val, strict=True):
        rows = checked(bank, known, queries, val_labels)
        found = {f"kNN, k = {k}": knn_correct(*rows, k=k), "logistic regression": linear_correct(*rows)}
        for shots, each in drawn.items():
            if len(each):
                found[f"{shots} label{'s' * (shots > 1)} per class"] = few_shot(*rows, each)
        both.append(found)
    return {
        measure: np.stack([100 * found[measure].double().cpu().numpy() for found in both], 1)
        for measure in both[0]
    }


def check_different(features: Tensor, name: str) -> None:
    """Raises ValueError if the features (N, D) of all images are the same up to rounding."""
    if all_same(features):
        raise ValueError(f"{name} gives all images the same features; choose an earlier checkpoint")


def all_same(rows: Tensor) -> bool:
    """Whether features (N, D) are the same for all images up to rounding."""
    unit = F.normalize(rows.double(), dim=1)
    return float((unit - unit.mean(0)).square().sum(1).mean()) < SPREAD


def draws(labels: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """(DRAWS, C, shots) positions of training images, `shots` of each class; (0, C, shots) if one has fewer.

    Successive draws share no image as long as the smallest class lasts. So they use the images almost equally
    often, and which images are drawn matters less than with independent draws.
    """
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    disjoint = min(map(len, members)) // shots
    rounds = -(-DRAWS // disjoint) if disjoint else 0
    found = [[rng.permutation(each)[: disjoint * shots] for each in members] for _ in range(rounds)]
    positions = np.array(found, int).reshape(rounds, len(members), disjoint, shots)
    return positions.swapaxes(1, 2).reshape(-1, len(members), shots)[:DRAWS]


def few_shot(bank: Tensor, codes: Tensor, queries: Tensor, truth: Tensor, drawn: np.ndarray) -> Tensor:
    """(M,): the share of draws in which the nearest class mean is that of a query's class.

    Features are taken relative to the mean of all training images, and then have length 1 (Wang et al. 2019,
    SimpleShot, CL2N). The bank (N, D) has the classes `codes` (N,), the queries (M, D) `truth` (M,); `drawn`
    is from `draws`, in the order of the classes.
    """
    centre, known = bank.mean(0), codes.unique()
    bank, queries = (F.normalize(rows - centre, dim=1) for rows in (bank, queries))
    right = bank.new_zeros(len(queries), dtype=torch.float64)
    for positions in torch.from_numpy(drawn).to(bank.device):
        means = bank[positions].mean(1)  # (C, D)
        # (M, C): half the squared distances, without |q|^2, which is the same for all classes
        distances = means.square().sum(1) / 2 - queries @ means.T
        right += known[distances.argmin(1)] == truth
    return right / len(drawn)
