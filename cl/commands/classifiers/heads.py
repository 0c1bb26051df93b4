"""A linear classifier of features, with accuracy and probabilities measured on images that it did not see.

Logistic regression: multinomial for one label per image, one-vs-rest for several.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, log_softmax, softmax

from cl.console.wording import counted
from cl.features import logistic
from cl.statistics import separated

FOLDS, FEWEST, BINS = 5, 3, 15
GRID = 10.0 ** np.arange(-1, 4)  # C of `logistic.fit`, for rows with a mean squared norm of 1
USUAL = 300.0  # C, with temperature 1, where folds are too few to choose them
ROUGH, PRECISE = 1e-4, 1e-8  # tolerances, for choosing C and for the head
TEMPERATURES = (0.1, 10.0)
BLOCK = 2**14  # images
ONE_SIDED = 1.645  # standard deviations: 5 % of a normal distribution are above

Fold = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Head:
    """Logits W f / |f| + b of features f."""

    weights: np.ndarray  # W, (C, D) float32
    bias: np.ndarray  # b, (C,) float32
    temperature: float  # divides the logits
    multilabel: bool  # an image may have several labels: probabilities are sigmoids instead of a softmax

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """(N, C) float32 for features (N, D), which may be mapped from a file."""
        result = np.empty((len(features), len(self.bias)), np.float32)
        for start in range(0, len(features), BLOCK):
            rows = slice(start, start + BLOCK)
            result[rows] = probabilities(
                self.logits(features[rows]), self.temperature, multilabel=self.multilabel
            )
        return result

    def logits(self, features: np.ndarray) -> np.ndarray:
        """(N, C), before the temperature."""
        result: np.ndarray = unit_rows(features) @ self.weights.T + self.bias
        return result


@dataclass(frozen=True)
class Trained:
    """A head, and the probabilities of each image by a head that was not trained on it."""

    head: Head
    regularisation: float  # C of `logistic.fit`
    calibrated: np.ndarray  # these probabilities, (N, C)
    folds: list[tuple[Head, np.ndarray]]  # a head, and the images that it was not trained on


def train(
    features: np.ndarray,
    targets: np.ndarray,
    classes: Sequence[str],
    groups: np.ndarray | None = None,
    *,
    multilabel: bool = False,
    number: int = FOLDS,
    report: Callable[[int], object] = lambda images: None,
) -> Trained:
    """Train a head on all images, and measure it by nested cross-validation.

    The images of a fold choose neither the regularisation nor the temperature of the head that they measure.

    Args:
        features: (N, D), finite.
        targets: (N, C) bool, the labels of each image: exactly one, or at least one if `multilabel`.
        classes: the C names, for errors.
        groups: (N,) int64; images of a group are in the same fold; -1: no group.
        number: of folds; few images give fewer.
        report: called with the number of images that a fold has measured.
    """
    folds, heads = folds_of(targets, classes, groups, number), []
    rows, to_features = _rotated(unit_rows(features.astype(np.float64)))
    calibrated = np.empty(targets.shape)
    for seen, held_out in folds:
        part = None if groups is None else groups[seen]
        fitted, _ = _fit(rows[seen], targets[seen], _folds(targets[seen], part), multilabel)
        heads.append((to_features(fitted), held_out))
        logits = rows[held_out] @ fitted.weights.T + fitted.bias
        calibrated[held_out] = probabilities(logits, fitted.temperature, multilabel=multilabel)
        report(len(held_out))
    fitted, regularisation = _fit(rows, targets, folds, multilabel)
    return Trained(to_features(fitted), regularisation, calibrated, heads)


def folds_of(
    targets: np.ndarray, classes: Sequence[str], groups: np.ndarray | None = None, number: int = FOLDS
) -> list[Fold]:
    """The rows (seen, held out) of each fold; raises ValueError for one class, or one that is in one fold."""
    if len(classes) < 2:
        raise ValueError(
            f"all labels are {classes[0]!r}, expected at least two classes; label images of another class"
        )
    folds = _folds(targets, groups, number)
    for label in _unseen(folds, targets):
        count = counted(int(targets[:, label].sum()), "labelled images")
        raise ValueError(
            f"class {classes[label]!r} has {count}, expected at least 2 that can be held out separately "
            "(images of a group or burst, and copies, stay together); label more, or remove this label"
        )
    return folds


def unit_rows(features: np.ndarray) -> np.ndarray:
    """The rows (N, D) divided by their lengths; rows of zeros stay."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1)


def _rotated(rows: np.ndarray) -> tuple[np.ndarray, Callable[[Head], Head]]:
    """The centred rows, with mean squared norm 1, in min(N, D) dimensions; the way back for a head.

    The weights of a head are a combination of the rows, so fewer dimensions lose nothing and save most of the
    time.
    """
    centre = rows.mean(0)
    rows = rows - centre
    scale = float(np.sqrt((rows**2).sum(1).mean())) or 1.0
    rows, axes = rows / scale, None
    if rows.shape[0] < rows.shape[1]:
        left, singular, axes = np.linalg.svd(rows, full_matrices=False)
        rows = left * singular

    def to_features(head: Head) -> Head:
        weights = (head.weights if axes is None else head.weights @ axes) / scale
        bias = head.bias - weights @ centre
        return replace(head, weights=weights.astype(np.float32), bias=bias.astype(np.float32))

    return rows, to_features


def _folds(targets: np.ndarray, groups: np.ndarray | None, most: int = FOLDS) -> list[Fold]:
    """The rows (seen, held out) of each fold, stratified by the rarest label of each image; groups together.

    The largest groups come first, each into the fold with the fewest images of its most frequent label, but
    if possible not where it would complete a label. Few images give fewer folds, or none.
    """
    rarest = np.where(targets, targets.sum(0), np.inf).argmin(1)
    names, group = np.unique(separated(groups, len(rarest)), return_inverse=True)
    number = min(most, len(names), int(targets.sum(0).max()))
    if number < 2:
        return []
    counts = np.zeros((len(names), targets.shape[1]), int)
    np.add.at(counts, (group, rarest), 1)
    every = np.zeros_like(counts)  # label of each image, not only the rarest
    np.add.at(every, group, targets)
    label, size = counts.argmax(1), counts.sum(1)
    fold, held = np.empty(len(names), int), np.zeros(number, int)
    others = np.tile(targets.sum(0), (number, 1))  # images of each label outside the fold
    random = np.random.default_rng(0).random(len(names))
    for each in np.lexsort((random, label, -size)):
        completed = ((others == every[each]) & (every[each] > 0)).sum(1)
        fold[each] = np.lexsort((held, -others[:, label[each]], completed))[0]
        held[fold[each]] += size[each]
        others[fold[each]] -= every[each]
    return [(np.flatnonzero(fold[group] != k), np.flatnonzero(fold[group] == k)) for k in range(number)]


def _unseen(folds: list[Fold], targets: np.ndarray) -> list[int]:
    """The classes that the head of some fold would not see."""
    if not folds:
        return list(range(targets.shape[1]))
    return np.flatnonzero(~np.all([targets[seen].any(0) for seen, _ in folds], axis=0)).tolist()


def _fit(rows: np.ndarray, targets: np.ndarray, folds: list[Fold], multilabel: bool) -> tuple[Head, float]:
    """A head of all rows, with the temperature and the C that give held-out rows the smallest log-loss.

    The log-loss has one minimum, where accuracies of few images tie; its heads are nearly calibrated. With
    two folds, heads of half the images would choose; USUAL is better (docs/results/classification.md).
    """
    chosen, temperature, best = USUAL, 1.0, np.inf
    if len(folds) >= FEWEST and not _unseen(folds, targets):
        fits: list[np.ndarray | None] = [None] * len(folds)
        logits = np.empty(targets.shape)
        for c in GRID:
            for k, (seen, held_out) in enumerate(folds):
                fitted = logistic.fit(
                    rows[seen], targets[seen], c, multilabel=multilabel, start=fits[k], tolerance=ROUGH
                )
                fits[k] = fitted
                logits[held_out] = rows[held_out] @ fitted[:, :-1].T + fitted[:, -1]
            loss = float(log_losses(logits, targets, multilabel=multilabel).mean())
            if loss >= best:
                break
            best, chosen = loss, float(c)
            temperature = fit_temperature(logits, targets, multilabel=multilabel)
    final = logistic.fit(rows, targets, chosen, multilabel=multilabel, tolerance=PRECISE)
    return Head(final[:, :-1], final[:, -1], temperature, multilabel), chosen


def probabilities(logits: np.ndarray, temperature: float, *, multilabel: bool) -> np.ndarray:
    """Softmax of logits (N, C) / temperature, or their sigmoid if `multilabel`."""
    result: np.ndarray = expit(logits / temperature) if multilabel else softmax(logits / temperature, axis=1)
    return result


def log_losses(logits: np.ndarray, targets: np.ndarray, *, multilabel: bool) -> np.ndarray:
    """(N,): the cross-entropy of each image with targets (N, C), labels or probabilities, in nats."""
    if multilabel:
        likelihood = targets * log_expit(logits) + (1 - targets) * log_expit(-logits)
    else:
        likelihood = targets * log_softmax(logits, axis=1)
    losses: np.ndarray = -likelihood.sum(1)
    return losses


def fit_temperature(logits: np.ndarray, targets: np.ndarray, *, multilabel: bool) -> float:
    """The temperature with the smallest log-loss (Guo et al. 2017, On calibration of modern neural networks).

    One image is added whose labels are all equally likely: otherwise few images, all right, would give 0.
    """
    n, classes = targets.shape
    smoothed = (n * targets + 1 / (2 if multilabel else classes)) / (n + 1)

    def loss(log_temperature: float) -> float:
        return float(log_losses(logits / np.exp(log_temperature), smoothed, multilabel=multilabel).mean())

    return float(np.exp(minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded").x))


def calibration_error(
    probabilities: np.ndarray, targets: np.ndarray, *, multilabel: bool, independent: float | None = None
) -> float:
    """Expected calibration error in percent, in 15 bins of equal width, less what few images add to it.

    It compares the largest probability of each image with whether that class is right; if `multilabel`, each
    probability with whether the image has the label (Guo et al. 2017, eq. 3). Calibrated probabilities have
    an error E0, too, as a bin's number of right images has the variance s^2 = sum p (1 - p): with a normal
    distribution, the sum over bins of s sqrt(2 / pi), over N. As by the debiased estimators of Kumar et al.
    2019 (Verified uncertainty calibration), squares are subtracted: sqrt(error^2 - E0^2), at least 0.

    Args:
        independent: how many independent images there are, if fewer than N; s^2 grows in proportion.
    """
    if multilabel:
        confidence, right = probabilities.ravel(), targets.ravel()
    else:
        confidence = probabilities.max(1)
        right = percent_right(probabilities, targets) > 0
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, confidence - right, BINS)
    inflation = len(targets) / independent if independent else 1.0
    variances = inflation * np.bincount(bins, confidence * (1 - confidence), BINS)
    squares = np.abs(gaps).sum() ** 2 - 2 / np.pi * np.sqrt(variances).sum() ** 2
    return float(100 * np.sqrt(max(0.0, squares)) / len(confidence))


def largest_calibration_error(error: float, right: np.ndarray, independent: float) -> float:
    """What a calibration error measured as `error` is at most, in about 95 of 100 cases, in percent.

    The one-sided margin of a share of N images, and 3 / N: as many may be wrong if none was (rule of three,
    Hanley and Lippman-Hand 1983).

    Args:
        right: whether each image's class, or each label, is right.
        independent: N; 0, for images of one group, gives 100.
    """
    if not independent:
        return 100.0
    return min(100.0, error + 100 * (ONE_SIDED * float(right.std()) / independent**0.5 + 3 / independent))


def percent_right(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(N,): 100 for an image that has the class of its largest score (N, C), else 0."""
    return 100.0 * targets[np.arange(len(targets)), scores.argmax(1)]


def average_precisions(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Average precision (C,) of the images ranked by each class, in percent; equal scores share a rank."""
    found = []
    for truth, ranked in zip(targets.T, scores.T, strict=True):
        order = (-ranked).argsort(kind="stable")
        hits = truth[order].cumsum()
        last = np.append(np.flatnonzero(np.diff(ranked[order])), len(order) - 1)  # of equal scores
        precision, recall = hits[last] / (last + 1), hits[last] / hits[-1]
        found.append(100 * (np.diff(recall, prepend=0) * precision).sum())
    return np.array(found)
