"""How good features are, without the pipeline: accuracies of simple classifiers on arrays or tensors."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cl.features.knn import classify, nearest_in_array
from cl.runtime.distributed import single_process

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def knn_accuracy(
    train_features: "ArrayLike | Tensor",
    train_labels: "ArrayLike | Tensor",
    test_features: "ArrayLike | Tensor",
    test_labels: "ArrayLike | Tensor",
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """Percentage of test rows for whose class the k nearest training rows vote, as the evaluation `knn`.

    Votes weigh exp(cosine / temperature) (Wu et al. 2018, section 3.4); the features need not be normalised.

    Args:
        train_features, test_features: (N, D) and (M, D).
        train_labels, test_labels: (N,) and (M,), numbers or strings.

    Raises:
        ValueError: the shapes do not fit, features are not finite, there are fewer than k training rows, k is
            below 1, or `temperature` is not above 0.
    """
    rows = checked(train_features, train_labels, test_features, test_labels)
    return 100 * float(knn_correct(*rows, k=k, temperature=temperature).double().mean())


def knn_correct(
    bank: Tensor, codes: Tensor, queries: Tensor, truth: Tensor, *, k: int, temperature: float = 0.07
) -> Tensor:
    """(M,) bool: the test rows that `knn_accuracy` counts, of what `checked` returns."""
    if k < 1 or temperature <= 0:
        raise ValueError(f"k={k} and temperature={temperature}, expected at least 1 and a number above 0")
    bank, queries = F.normalize(bank, dim=1), F.normalize(queries, dim=1)
    classes = int(codes.max()) + 1
    with single_process():  # the caller's processes may have other rows, or not call this at all
        predicted = classify(queries, bank, codes, classes, k=[k], temperature=temperature)[0]
    return predicted == truth


def linear_probe(
    train_features: "ArrayLike | Tensor",
    train_labels: "ArrayLike | Tensor",
    test_features: "ArrayLike | Tensor",
    test_labels: "ArrayLike | Tensor",
    *,
    c: float = 1.0,
) -> float:
    """Percentage of test rows that multinomial logistic regression classifies correctly.

    It is fitted by L-BFGS on features standardised with the training rows. The evaluation `linear` is another
    protocol: SGD on features of augmented images, as in the papers. Arguments as in `knn_accuracy`.

    Args:
        c: inverse strength of the L2 penalty, as in scikit-learn.

    Raises:
        ValueError: the shapes do not fit, features are not finite, all training rows have one label, or `c`
            is not above 0.
    """
    rows = checked(train_features, train_labels, test_features, test_labels)
    return 100 * float(linear_correct(*rows, c=c).double().mean())


def linear_correct(bank: Tensor, codes: Tensor, queries: Tensor, truth: Tensor, *, c: float = 1.0) -> Tensor:
    """(M,) bool: the test rows that `linear_probe` counts, of what `checked` returns."""
    from cl.features.logistic import fit  # late: scipy.optimize is slow to import

    if c <= 0:
        raise ValueError(f"c={c}, expected a number above 0")
    known = codes.unique()
    if len(known) == 1:
        raise ValueError("all training rows have one label, expected two or more classes")
    train, test = bank.double().cpu().numpy(), queries.double().cpu().numpy()
    mean, deviation = train.mean(0), train.std(0)
    deviation[deviation == 0] = 1
    parameters = fit((train - mean) / deviation, (codes[:, None] == known).cpu().numpy(), c)
    logits = (test - mean) / deviation @ parameters[:, :-1].T + parameters[:, -1]
    return known[torch.from_numpy(logits.argmax(1)).to(known.device)] == truth


def correct_by(
    bank: np.ndarray, known: np.ndarray, queries: np.ndarray, truth: np.ndarray, *, k: int
) -> dict[str, np.ndarray]:
    """(M,) of 0 or 1: which test rows kNN, logistic regression and the most frequent label find.

    Arguments as in `knn_accuracy`, with labels as strings.
    """
    rows = checked(bank, known, queries, truth)
    labels, counts = np.unique(known, return_counts=True)
    return {
        "kNN": knn_correct(*rows, k=k).cpu().numpy().astype(float),
        "logistic regression": linear_correct(*rows).cpu().numpy().astype(float),
        "most frequent": (truth == labels[counts.argmax()]).astype(float),
    }


def correct_in_parts(
    bank: np.ndarray,
    known: np.ndarray,
    queries: np.ndarray,
    truth: np.ndarray,
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    k: int,
) -> dict[str, np.ndarray]:
    """(M,): `correct_by` of each test row; 0 in a part whose training rows have one label.

    Parts of training and of test rows, as in cross-validation. At most all training rows of a part vote.
    """
    right = {measure: np.zeros(len(truth)) for measure in ("kNN", "logistic regression", "most frequent")}
    for seen, asked in parts:
        if len({*known[seen]}) > 1:
            sides = bank[seen], known[seen], queries[asked], truth[asked]
            for measure, each in correct_by(*sides, k=min(k, len(sides[1]))).items():
                right[measure][asked] = each
    return right


def nearest_agrees(features: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Whether the nearest other row of (N, D) has a row's value, of values (N,).

    Returns the rows whose value another row has (N,), which of these agree (m,), and the percentage that
    would by chance, 0 without such rows.
    """
    codes = np.unique(values, return_inverse=True)[1]
    others = np.bincount(codes)[codes] - 1
    shared = others > 0
    if not shared.any():
        return shared, shared[:0], 0.0
    near = nearest_in_array(features, features, 2)[1]
    nearest = np.where(near[:, 0] == np.arange(len(codes)), near[:, 1], near[:, 0])
    chance = 100 * float(others[shared].mean()) / (len(codes) - 1)
    return shared, (codes[nearest] == codes)[shared], chance


def checked(
    train_features: "ArrayLike | Tensor",
    train_labels: "ArrayLike | Tensor",
    test_features: "ArrayLike | Tensor",
    test_labels: "ArrayLike | Tensor",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features in float32 or float64, and labels as numbers from 0, on the device of the training rows."""
    bank, queries = (_features(x, name) for x, name in ((train_features, "train"), (test_features, "test")))
    if bank.shape[1] != queries.shape[1]:
        raise ValueError(f"train_features are {bank.shape[1]} wide and test_features {queries.shape[1]}")
    known, truth = (np.asarray(x.cpu() if isinstance(x, Tensor) else x) for x in (train_labels, test_labels))
    for name, labels, rows in (("train", known, bank), ("test", truth, queries)):
        if labels.shape != (len(rows),):
            raise ValueError(f"{name}_labels have shape {labels.shape}, expected labels of {len(rows)} rows")
    _, numbers = np.unique(np.concatenate([known, truth]), return_inverse=True)
    codes = torch.from_numpy(numbers).to(bank.device)
    return bank, codes[: len(known)], queries.to(bank.device), codes[len(known) :]


def _features(x: "ArrayLike | Tensor", name: str) -> Tensor:
    rows = x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.require(x, requirements=["C", "W"]))
    if rows.ndim != 2 or not len(rows):
        raise ValueError(f"{name}_features have shape {tuple(rows.shape)}, expected (rows, width)")
    rows = rows if rows.dtype == torch.float64 else rows.float()
    if not rows.isfinite().all():
        raise ValueError(f"{name}_features contain NaN or infinity; look at the encoder that made them")
    return rows
