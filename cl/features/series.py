"""Images that belong together: bursts, frames of a video, shots of one object, near copies.

Names and times only propose pairs; the features decide, measured by the similarities within the set itself.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from cl.features.copies import by_value, cosines_of
from cl.features.knn import nearest_in_array

REACH = 3  # places between the images of a proposed pair, at most
FEWEST = 6  # images of a label that show which similarities are usual
RISK = 0.05  # of any pair where no images belong together
COST = 3  # of a wrong pair, which joins two bursts, in right pairs
NEIGHBOURS, NEARER = 16, 1 / 3  # a near copy is at most 1/3 as far away as the nearest other image
MANY, WIDTH = 2**14, 128  # more images are compared by projected features, for time

DIGITS = re.compile(r"(\d+)")


def series(
    features: Sequence[np.ndarray],
    names: Sequence[str],
    labels: Sequence[str] | np.ndarray,
    times: np.ndarray | None = None,
) -> np.ndarray:
    """(m, 2): pairs of images that belong together; `cl.features.copies.groups` connects them.

    Images at most three places apart by name, or by time, are proposed. A pair is accepted if its features
    are more similar than those of nearly all pairs of one label that are far apart, by half the label's
    images, and so rarely belong together (Benjamini and Hochberg 1995, with the distant pairs as null
    distribution). Independent images in any order give no pair in 95 % of sets, also if labels are in order.
    If some images belong together, pairs are accepted until a third of the next ones would be wrong. Near
    copies are found anywhere within a label: all are at most a third as far from an image as the next one.

    Args:
        features: (N, D) of one encoder or of several, which count equally.
        names: paths, which sort like frames: 9 before 10.
        labels: of the images, or their folders; within one, names tell nothing about independent images.
        times: (N,) in seconds, NaN if unknown.
    """
    rows = [_unit(each) for each in features]
    orders = [np.array(sorted(range(len(names)), key=lambda image: _natural(names[image])), int)]
    if times is not None:
        known = np.flatnonzero(np.isfinite(times))
        orders.append(known[times[known].argsort(kind="stable")])
    codes = np.unique(np.asarray(labels), return_inverse=True)[1]
    found = [_similar_neighbours(rows, order, codes[order]) for order in orders]
    found += [members[_near_copies([each[members] for each in rows])] for members in by_value(codes)]
    return np.unique(np.sort(np.concatenate(found), axis=1), axis=0)


def _unit(features: np.ndarray) -> np.ndarray:
    """The centred rows with length 1."""
    rows = features.astype(np.float32) - features.mean(0, dtype=np.float64).astype(np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in DIGITS.split(name)]


def _similar_neighbours(rows: list[np.ndarray], order: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The accepted pairs (m, 2) of images that are close in this order (n,), which have these labels (n,)."""
    far = [pair for members in by_value(labels) for pair in _far_apart(members)]
    if not far:
        return np.empty((0, 2), int)
    distant = np.concatenate(far)
    usual = _similarity(rows, order[distant])
    first, second = distant.T
    sums = np.bincount(first, usual, len(labels)) + np.bincount(second, usual, len(labels))
    counts = np.bincount(distant.ravel(), minlength=len(labels))
    close = np.concatenate(
        [np.stack([at := np.arange(len(order) - k), at + k], 1) for k in range(1, REACH + 1)]
    )
    close = close[(counts[close] > 0).all(1)]
    means = sums / np.maximum(counts, 1)
    scores = _similarity(rows, order[close]) - means[close].mean(1)
    without = (sums[distant] - usual[:, None]) / np.maximum(counts[distant] - 1, 1)
    return order[close[_accepted(scores, usual - without.mean(1))]]


def _far_apart(members: np.ndarray) -> Iterator[np.ndarray]:
    """Pairs of one label's images, in order, that are about half of them apart, in both directions."""
    count = len(members)
    width = max(1, min(16, count // 8))
    if count >= FEWEST:
        for offset in range(count // 2 - width, count // 2 + width + 1):
            yield np.stack([members, np.roll(members, offset)], axis=1)


def _accepted(scores: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Which scores (m,) are above the null distribution."""
    order, null = scores.argsort()[::-1], np.sort(null)
    above = 1 + len(null) - np.searchsorted(null, scores[order])
    pairs, wrong = np.arange(1, len(scores) + 1), len(scores) * above / (len(null) + 1)
    accepted = np.zeros(len(scores), bool)
    if (wrong <= RISK * pairs).any():
        accepted[order[: (pairs - COST * wrong).argmax() + 1]] = True
    return accepted


def _similarity(rows: list[np.ndarray], pairs: np.ndarray) -> np.ndarray:
    """(m,): the cosine of each pair (m, 2), a mean over the encoders."""
    return np.stack([cosines_of(each, pairs) for each in rows]).mean(0, dtype=np.float64)


def _near_copies(features: list[np.ndarray]) -> np.ndarray:
    """Pairs (m, 2) of images of a label that are each among the near copies of the other.

    Without the mean of the label: otherwise all images of a distinct class would be near copies. A random
    projection of many images keeps distances within about 6 % (Johnson and Lindenstrauss 1984).
    """
    rows = np.concatenate([_unit(each) for each in features], axis=1)
    if len(rows) > MANY and rows.shape[1] > WIDTH:
        rows = rows @ np.random.default_rng(0).standard_normal((rows.shape[1], WIDTH), np.float32)
    k = min(NEIGHBOURS + 2, len(rows))
    cosines, positions = nearest_in_array(rows, rows, k)
    distances = np.sqrt(2 - 2 * cosines.clip(max=1))
    is_gap = distances[:, :-1] < NEARER * distances[:, 1:]
    count = np.where(is_gap, np.arange(1, k), 0).max(1, initial=0)  # with the image itself
    image, column = np.nonzero(np.arange(k) < count[:, None])
    pairs = np.stack([image, positions[image, column]], axis=1)
    pairs, times = np.unique(np.sort(pairs, axis=1), axis=0, return_counts=True)
    return pairs[times == 2]  # found from both images
