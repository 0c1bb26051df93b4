"""A linear classifier of features, whose accuracy and probabilities are measured on images it did not see.

Logistic regression (scikit-learn, L-BFGS): multinomial for one label per image, one-vs-rest for several.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from cl.console.wording import counted

FOLDS, BINS = 5, 15
GRID = 10.0 ** np.arange(-1, 6)  # C of LogisticRegression, for rows with a mean squared norm of 1
USUAL = 1000.0  # C where a class has too few images to choose it
STEPS = 2000  # of L-BFGS
TEMPERATURES = (1e-3, 1e3)
SMOOTH=1

Split = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Head:
    """Logits are W f / |f| + b, for features f; probabilities their softmax, or sigmoid if `several`.

    weights: (C, D) float32.
    bias: (C,) float32.
    temperature: divides the logits.
    several: whether an image may have several labels.
    """

    weights: np.ndarray
    bias: np.ndarray
    temperature: float
    several: bool

    def logits(self, features: np.ndarray) -> np.ndarray:
        """(N, C) float32, before the temperature, for features (N, D)."""
        return unit_rows(features) @ self.weights.T + self.bias

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """(N, C) float32 for features (N, D)."""
        return probabilities(self.logits(features), self.temperature, several=self.several)


@dataclass(frozen=True)
class Trained:
    """A head, and what heads of cross-validation say of the images that they were not trained on.

    regularisation: C of LogisticRegression, chosen by the log-loss of held-out images.
    raw: (N, C) probabilities of the held-out images.
    calibrated: (N, C), with a temperature fitted on the other folds.
    """

    head: Head
    regularisation: float
    raw: np.ndarray
    calibrated: np.ndarray


def train(
    features: np.ndarray,
    targets: np.ndarray,
    classes: Sequence[str],
    groups: np.ndarray | None = None,
    *,
    several: bool = False,
    seed: int = 0,
) -> Trained:
    """Train a head on all images, and measure it by nested cross-validation.

    The images that measure a head chose neither its regularisation nor its temperature.

    Args:
        features: (N, D), finite.
        targets: (N, C) bool, the labels of each image; exactly one per image if not `several`.
        classes: the C names, for errors.
        groups: (N,) int64; images of a group are in the same fold, and -1 is an image without a group.

    Raises:
        ValueError: there is one class only, or all images of a class would be in one fold.
    """
    if len(classes) < 2:
        raise ValueError(f"all labels are {classes[0]!r}; a classifier needs at least two classes")
    rows, to_features = _rotated(unit_rows(features.astype(np.float64)))
    folds = _folds(targets, groups, seed)
    _check_folds(folds, targets, classes, groups)
    raw, calibrated = np.empty(targets.shape), np.empty(targets.shape)
    for seen, held_out in folds:
        part = None if groups is None else groups[seen]
        fitted = _fit(rows[seen], targets[seen], _folds(targets[seen], part, seed), several)
        logits = rows[held_out] @ fitted.weights.T + fitted.bias
        raw[held_out] = probabilities(logits, 1.0, several=several)
        calibrated[held_out] = probabilities(logits, fitted.temperature, several=several)
    fitted = _fit(rows, targets, folds, several)
    head = Head(*to_features(fitted.weights, fitted.bias), fitted.temperature, several)
    return Trained(head, fitted.regularisation, raw, calibrated)


def unit_rows(features: np.ndarray) -> np.ndarray:
    """The rows (N, D) divided by their lengths; zero rows remain."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _rotated(rows: np.ndarray) -> tuple[np.ndarray, Callable[..., tuple[np.ndarray, np.ndarray]]]:
    """The centred rows with mean squared norm 1, in at most N dimensions, and the way back for a head.

    A head's weights are a combination of the rows, so nothing is lost where N < D, and fits are several times
    faster.
    """
    centre = rows.mean(0)
    rows = rows - centre
    scale = max(float(np.sqrt((rows**2).sum(1).mean())), 1e-12)
    rows, axes = rows / scale, None
    if rows.shape[0] < rows.shape[1]:
        left, singular, axes = np.linalg.svd(rows, full_matrices=False)
        rows = left * singular

    def to_features(weights: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = (weights if axes is None else weights @ axes) / scale
        return weights.astype(np.float32), (bias - weights @ centre).astype(np.float32)

    return rows, to_features


def _folds(targets: np.ndarray, groups: np.ndarray | None, seed: int) -> list[Split]:
    """The rows (seen, held out) of each fold, with each class spread over the folds; an image counts as its
    rarest class. Few images give few folds, or none.
    """
    rarest = np.where(targets, targets.sum(0), np.inf).argmin(1)
    own = np.arange(len(rarest)) if groups is None else np.where(groups < 0, -1 - np.arange(len(groups)), groups)
    number = min(FOLDS, len(np.unique(own)), int(np.bincount(rarest).max()))
    if number < 2:
        return []
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a class with fewer images than folds
        return list(kind(number, shuffle=True, random_state=seed).split(rarest, rarest, own))


def _unseen(folds: list[Split], targets: np.ndarray) -> list[int]:
    """The classes without an image in some fold's training part."""
    if not folds:
        return list(range(targets.shape[1]))
    return np.flatnonzero(~np.all([targets[seen].any(0) for seen, _ in folds], axis=0)).tolist()


def _check_folds(
    folds: list[Split], targets: np.ndarray, classes: Sequence[str], groups: np.ndarray | None
) -> None:
    """Raises ValueError if all images of a class are in one fold."""
    for number in _unseen(folds, targets):
        images = counted(int(targets[:, number].sum()), "labelled images")
        if groups is None:
            raise ValueError(
                f"class {classes[number]!r} has {images}, expected at least 2; label another, or remove it"
            )
        raise ValueError(
            f"class {classes[number]!r} has {images} in too few groups to measure it on other groups; label "
            "images of it in more groups, or leave out the groups"
        )


class _Regression:
    """Logistic regression with intercepts; a fit starts from the previous one."""

    def __init__(self, several: bool) -> None:
        self.several = several
        self._models: list[LogisticRegression] = []

    def fit(self, rows: np.ndarray, targets: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights (C, D) and bias (C,)."""
        columns = list(targets.T) if self.several else [targets.argmax(1)]
        if not self._models:
            self._models = [LogisticRegression(max_iter=STEPS, warm_start=True) for _ in columns]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for model, column in zip(self._models, columns, strict=True):
                model.set_params(C=c).fit(rows, column)
        weights = np.concatenate([model.coef_ for model in self._models])
        bias = np.concatenate([model.intercept_ for model in self._models])
        if len(weights) < targets.shape[1]:  # scikit-learn has one row for two classes
            return np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
        return weights, bias


class _Fitted(NamedTuple):
    weights: np.ndarray  # (C, D)
    bias: np.ndarray  # (C,)
    temperature: float
    regularisation: float


def _fit(rows: np.ndarray, targets: np.ndarray, folds: list[Split], several: bool) -> _Fitted:
    """A head of all rows, with the C and the temperature that give held-out rows the smallest log-loss.

    The log-loss has a clear minimum, where accuracies of few images tie, and its heads are nearly calibrated.
    Where folds lack a class, C is USUAL and the temperature 1.
    """
    chosen, temperature, best = USUAL, 1.0, np.inf
    if not _unseen(folds, targets):
        models, logits = [_Regression(several) for _ in folds], np.empty(targets.shape)
        for c in GRID:
            for model, (seen, held_out) in zip(models, folds, strict=True):
                weights, bias = model.fit(rows[seen], targets[seen], c)
                logits[held_out] = rows[held_out] @ weights.T + bias
            loss = log_loss(logits, targets, several=several).sum()
            if loss >= best:  # it falls to a minimum, then rises
                break
            best, chosen = loss, float(c)
            temperature = fit_temperature(logits, targets, several=several)
    return _Fitted(*_Regression(several).fit(rows, targets, chosen), temperature, chosen)


def probabilities(self, features: np.ndarray) -> np.ndarray:
        """(N, C) float32 for features (N, D)."""
        return probabilities(self.logits(features), self.temperature, several=self.several)


@dataclass(frozen=True)
class Trained:
    """A head, and what heads of cross-validation say of the images that they were not trained on.

    regularisation: C of LogisticRegression, chosen by the log-loss of held-out images.
    raw: (N, C) probabilities of the held-out images.
    calibrated: (N, C), with a temperature fitted on the other folds.
    """

    head: Head
    regularisation: float
    raw: np.ndarray
    calibrated: np.ndarray


def train(
    features: np.ndarray,
    targets: np.ndarray,
    classes: Sequence[str],
    groups: np.ndarray | None = None,
    *,
    several: bool = False,
    seed: int = 0,
) -> Trained:
    """Train a head on all images, and measure it by nested cross-validation.

    The images that measure a head chose neither its regularisation nor its temperature.

    Args:
        features: (N, D), finite.
        targets: (N, C) bool, the labels of each image; exactly one per image if not `several`.
        classes: the C names, for errors.
        groups: (N,) int64; images of a group are in the same fold, and -1 is an image without a group.

    Raises:
        ValueError: there is one class only, or all images of a class would be in one fold.
    """
    if len(classes) < 2:
        raise ValueError(f"all labels are {classes[0]!r}; a classifier needs at least two classes")
    rows, to_features = _rotated(unit_rows(features.astype(np.float64)))
    folds = _folds(targets, groups, seed)
    _check_folds(folds, targets, classes, groups)
    raw, calibrated = np.empty(targets.shape), np.empty(targets.shape)
    for seen, held_out in folds:
        part = None if groups is None else groups[seen]
        fitted = _fit(rows[seen], targets[seen], _folds(targets[seen], part, seed), several)
        logits = rows[held_out] @ fitted.weights.T + fitted.bias
        raw[held_out] = probabilities(logits, 1.0, several=several)
        calibrated[held_out] = probabilities(logits, fitted.temperature, several=several)
    fitted = _fit(rows, targets, folds, several)
    head = Head(*to_features(fitted.weights, fitted.bias), fitted.temperature, several)
    return Trained(head, fitted.regularisation, raw, calibrated)


def unit_rows(features: np.ndarray) -> np.ndarray:
    """The rows (N, D) divided by their lengths; zero rows remain."""
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def _rotated(rows: np.ndarray) -> tuple[np.ndarray, Callable[..., tuple[np.ndarray, np.ndarray]]]:
    """The centred rows with mean squared norm 1, in at most N dimensions, and the way back for a head.

    A head's weights are a combination of the rows, so nothing is lost where N < D, and fits are several times
    faster.
    """
    centre = rows.mean(0)
    rows = rows - centre
    scale = max(float(np.sqrt((rows**2).sum(1).mean())), 1e-12)
    rows, axes = rows / scale, None
    if rows.shape[0] < rows.shape[1]:
        left, singular, axes = np.linalg.svd(rows, full_matrices=False)
        rows = left * singular

    def to_features(weights: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = (weights if axes is None else weights @ axes) / scale
        return weights.astype(np.float32), (bias - weights @ centre).astype(np.float32)

    return rows, to_features


def _folds(targets: np.ndarray, groups: np.ndarray | None, seed: int) -> list[Split]:
    """The rows (seen, held out) of each fold, with each class spread over the folds; an image counts as its
    rarest class. Few images give few folds, or none.
    """
    rarest = np.where(targets, targets.sum(0), np.inf).argmin(1)
    own = np.arange(len(rarest)) if groups is None else np.where(groups < 0, -1 - np.arange(len(groups)), groups)
    number = min(FOLDS, len(np.unique(own)), int(np.bincount(rarest).max()))
    if number < 2:
        return []
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a class with fewer images than folds
        return list(kind(number, shuffle=True, random_state=seed).split(rarest, rarest, own))


def _unseen(folds: list[Split], targets: np.ndarray) -> list[int]:
    """The classes without an image in some fold's training part."""
    if not folds:
        return list(range(targets.shape[1]))
    return np.flatnonzero(~np.all([targets[seen].any(0) for seen, _ in folds], axis=0)).tolist()


def _check_folds(
    folds: list[Split], targets: np.ndarray, classes: Sequence[str], groups: np.ndarray | None
) -> None:
    """Raises ValueError if all images of a class are in one fold."""
    for number in _unseen(folds, targets):
        images = counted(int(targets[:, number].sum()), "labelled images")
        if groups is None:
            raise ValueError(
                f"class {classes[number]!r} has {images}, expected at least 2; label another, or remove it"
            )
        raise ValueError(
            f"class {classes[number]!r} has {images} in too few groups to measure it on other groups; label "
            "images of it in more groups, or leave out the groups"
        )


class _Regression:
    """Logistic regression with intercepts; a fit starts from the previous one."""

    def __init__(self, several: bool) -> None:
        self.several = several
        self._models: list[LogisticRegression] = []

    def fit(self, rows: np.ndarray, targets: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights (C, D) and bias (C,)."""
        columns = list(targets.T) if self.several else [targets.argmax(1)]
        if not self._models:
            self._models = [LogisticRegression(max_iter=STEPS, warm_start=True) for _ in columns]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for model, column in zip(self._models, columns, strict=True):
                model.set_params(C=c).fit(rows, column)
        weights = np.concatenate([model.coef_ for model in self._models])
        bias = np.concatenate([model.intercept_ for model in self._models])
        if len(weights) < targets.shape[1]:  # scikit-learn has one row for two classes
            return np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
        return weights, bias


def _choose(rows: np.ndarray, targets: np.ndarray, folds: list[Split], several: bool) -> float:
    """The C after which the log-loss of the held-out images no longer falls.

    The log-loss has a clear minimum, where accuracies of few images tie, and gives calibrated probabilities.
    """
    if _unseen(folds, targets):
        return USUAL
    models = [_Regression(several) for _ in folds]
    best, chosen = np.inf, USUAL
    for c in GRID:
        loss = 0.0
        for model, (seen, held_out) in zip(models, folds, strict=True):
            weights, bias = model.fit(rows[seen], targets[seen], c)
            loss += log_loss(rows[held_out] @ weights.T + bias, targets[held_out], several=several).sum()
        if loss >= best:
            break
        best, chosen = loss, float(c)
    return chosen


def probabilities(logits: np.ndarray, temperature: float, *, several: bool) -> np.ndarray:
    """Softmax of logits (N, C) / temperature, or sigmoid if `several`."""
    found: np.ndarray = expit(logits / temperature) if several else softmax(logits / temperature, axis=1)
    return found


def log_loss(logits: np.ndarray, targets: np.ndarray, *, several: bool) -> np.ndarray:
    """The negative log-likelihood (N,) of targets (N, C), which may be probabilities."""
    if several:
        return -(targets * log_expit(logits) + (1 - targets) * log_expit(-logits)).sum(1)
    return -(targets * log_softmax(logits, axis=1)).sum(1)


def fit_temperature(logits: np.ndarray, targets: np.ndarray, *, several: bool) -> float:
    """The temperature with the smallest log-loss (Guo et al. 2017, "On calibration of modern neural networks").

    One image more has all labels equally: else, where all images are right, the temperature would go to zero.
    """
    n, classes = targets.shape
    share = SMOOTH / (n + 1)
    smooth = (1 - share) * targets + share / (2 if several else classes)

    def loss(log_temperature: float) -> float:
        return float(log_loss(logits / np.exp(log_temperature), smooth, several=several).sum())

    return float(np.exp(minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded").x))


def calibration_error(probabilities: np.ndarray, targets: np.ndarray, *, several: bool) -> float:
    """Expected calibration error in percent, in 15 bins of equal width (Guo et al. 2017, eq. 3).

    It compares the largest probability of each image with whether its class is right; if `several`, every
    probability with whether the image has the label.
    """
    if several:
        confidence, right = probabilities.ravel(), targets.ravel()
    else:
        first = probabilities.argmax(1)[:, None]
        confidence = np.take_along_axis(probabilities, first, 1)[:, 0]
        right = np.take_along_axis(targets, first, 1)[:, 0]
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, confidence, BINS) - np.bincount(bins, right, BINS)
    return float(100 * np.abs(gaps).sum() / len(confidence))


def average_precisions(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Average precision (C,) of each label in percent."""
    columns = zip(targets.T, probabilities.T, strict=True)
    return np.array([100 * average_precision_score(truth, scores) for truth, scores in columns])
