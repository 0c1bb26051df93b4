"""cl classify beside scikit-learn on the same features: accuracy of the rest, calibration and time.

`python -W ignore -m benchmarks.classification FEATURES ...`: files of `cl embed`, whose images are in
folders named after their class. Labels are drawn five times, equally many for each class; where they are too
few for two of each class, some classes are left out. "minus C=1" is the mean difference from scikit-learn's
LogisticRegression(C=1) on the same draws, with its standard error.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier

from cl.commands.classifiers.heads import Head, calibration_error, train
from cl.commands.inputs import feature_files

LABELS, DRAWS, NEIGHBOURS = (10, 50, 300), 5, 5
FEWEST = 100  # unlabelled images


class Score(NamedTuple):
    """Percentages of the unlabelled images, and seconds.

    raw: the calibration error before the temperature.
    held_out: the accuracy that cross-validation tells.
    """

    accuracy: float
    error: float
    raw: float
    held_out: float
    seconds: float


class Draw(NamedTuple):
    """Labelled and unlabelled features (N, D), each with classes (N,)."""

    features: np.ndarray
    labels: np.ndarray
    rest: np.ndarray
    truth: np.ndarray


def draw(features: np.ndarray, classes: np.ndarray, labels: int, seed: int) -> Draw:
    """Draw `labels` images, equally many of each class, at least two."""
    rng = np.random.default_rng(seed)
    used = rng.permutation(classes.max() + 1)[: labels // 2]
    each = labels // len(used)
    chosen = np.concatenate([rng.permutation(np.flatnonzero(classes == c))[:each] for c in used])
    rest = np.setdiff1d(np.flatnonzero(np.isin(classes, used)), chosen)
    number = np.unique(classes[chosen], return_inverse=True)[1], np.searchsorted(np.sort(used), classes[rest])
    return Draw(features[chosen], number[0], features[rest], number[1])


def ours(drawn: Draw) -> Score:
    """As `cl classify`."""
    names = [str(number) for number in range(drawn.labels.max() + 1)]
    began = time.perf_counter()
    trained = train(drawn.features, np.eye(len(names), dtype=bool)[drawn.labels], names)
    seconds = time.perf_counter() - began
    raw = Head(trained.head.weights, trained.head.bias, 1.0, multilabel=False).probabilities(drawn.rest)
    found = score(trained.head.probabilities(drawn.rest), drawn, seconds)
    held_out = 100 * float((trained.calibrated.argmax(1) == drawn.labels).mean())
    return found._replace(raw=score(raw, drawn, 0).error, held_out=held_out)


def scikit_learn(build: Callable[[int], object]) -> Callable[[Draw], Score]:
    """An estimator of scikit-learn; `build` gets the number of images of the smallest class."""

    def measure(drawn: Draw) -> Score:
        estimator = build(int(np.bincount(drawn.labels).min()))
        began = time.perf_counter()
        estimator.fit(drawn.features, drawn.labels)  # type: ignore[attr-defined]
        seconds = time.perf_counter() - began
        return score(estimator.predict_proba(drawn.rest), drawn, seconds)  # type: ignore[attr-defined]

    return measure


def score(probabilities: np.ndarray, drawn: Draw, seconds: float) -> Score:
    accuracy = 100 * float((probabilities.argmax(1) == drawn.truth).mean())
    targets = np.eye(probabilities.shape[1], dtype=bool)[drawn.truth]
    return Score(
        accuracy, calibration_error(probabilities, targets, multilabel=False), np.nan, np.nan, seconds
    )


METHODS: dict[str, Callable[[Draw], Score]] = {
    "cl classify": ours,
    "LogisticRegression(C=1)": scikit_learn(lambda _: LogisticRegression(C=1, max_iter=1000)),
    "LogisticRegressionCV": scikit_learn(
        lambda smallest: LogisticRegressionCV(
            cv=StratifiedKFold(min(5, smallest), shuffle=True, random_state=0), max_iter=1000
        )
    ),
    "kNN, cosine": scikit_learn(
        lambda _: KNeighborsClassifier(NEIGHBOURS, weights="distance", metric="cosine")
    ),
}


def main() -> None:
    means: dict[tuple[str, int], list[Score]] = {}
    leads: dict[tuple[str, int], str] = {}
    for path in map(Path, sys.argv[1:]):
        found = feature_files.read(path)
        classes = np.unique([Path(name).parent.name for name in found.names], return_inverse=True)[1]
        for labels in LABELS:
            draws = [draw(found.features, classes, labels, seed) for seed in range(DRAWS)]
            if len(draws[0].rest) >= FEWEST:
                scores = [[measure(drawn) for drawn in draws] for measure in METHODS.values()]
                means[path.stem, labels] = [Score(*map(fmean, zip(*each, strict=True))) for each in scores]
                lead = [own.accuracy - other.accuracy for own, other in zip(*scores[:2], strict=True)]
                leads[path.stem, labels] = f"{fmean(lead):+.1f} ± {stdev(lead) / DRAWS**0.5:.1f}"
                print(path.stem, labels, file=sys.stderr, flush=True)
    held_out = {key: f"{row[0].held_out:.1f}" for key, row in means.items()}
    raw = {key: f"{row[0].raw:.1f}" for key, row in means.items()}
    table("accuracy", "accuracy", means, {"held out": held_out, "minus C=1": leads})
    table("calibration error", "error", means, {"before": raw})
    table("seconds", "seconds", means, {})


def table(
    title: str,
    field: str,
    means: dict[tuple[str, int], list[Score]],
    columns: dict[str, dict[tuple[str, int], str]],
) -> None:
    """Markdown, with a row for each file and number of labels, and further columns of `cl classify`."""
    own, *others = METHODS
    heads = [title, "labels", own, *columns, *others]
    print("\n" + " | ".join(["", *heads, ""]).strip(), "|---" * len(heads) + "|", sep="\n")
    for (name, labels), scores in means.items():
        first, *rest = (f"{getattr(score, field):.{2 if field == 'seconds' else 1}f}" for score in scores)
        more = (column[name, labels] for column in columns.values())
        print(" | ".join(["", name, str(labels), first, *more, *rest, ""]).strip())


if __name__ == "__main__":
    main()
