"""Images that are copies of each other but for size, compression, a small crop, mirroring or brightness.

Two images are copies if one is among the K nearest of the other by their features, with a cosine, and with an
agreement of pixels (`cl.features.copies.agreement`), that made copies reach.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image as Picture

from cl.console.progress import Count
from cl.data import ring
from cl.data.transform import Transform
from cl.features import copies
from cl.features.extraction import BATCH, FEW
from cl.features.neighbours import nearest
from cl.hub.encoder import Encoder
from cl.runtime.cores import cores

K = 10
SAMPLE = 200  # images that are copied
MISSED = 0.01  # of the made copies, by each threshold
SHORT_SIDE = 512  # pixels of an image that is copied, at most


@dataclass(frozen=True)
class Calibration:
    """Thresholds from copies of half of the sampled images, and how they do on the others.

    cosine, agreement: thresholds that 99 % of the copies reach.
    recall: the share of the other half's copies that are found, by kind of change.
    copies: the number of these copies of one kind.
    pairs: pairs of sampled images whose cosine is below its threshold, which are surely different.
    false_agreements: how many of them reach the threshold of agreement.
    """

    cosine: float
    agreement: float
    recall: dict[str, float]
    copies: int
    pairs: int
    false_agreements: int


@dataclass(frozen=True)
class Pairs:
    """Pairs of copies.

    positions: (m, 2), the smaller first.
    cosines, agreements: (m,).
    candidates: how many pairs reached the threshold of the cosine.
    """

    positions: np.ndarray
    cosines: np.ndarray
    agreements: np.ndarray
    candidates: int


def calibrate(
    features: np.ndarray, paths: Sequence[Path], encoder: Encoder, transform: Transform, count: Count
) -> Calibration:
    """Make copies of a sample of the images, embed them, and compare them with the originals and with others.

    Args:
        features: (N, D) of any length per row.
        paths: of the N images.

    Raises:
        ValueError, OSError: an image cannot be read, or the features of a copy are not finite.
    """
    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(len(paths), min(SAMPLE, len(paths)), replace=False))
    originals, made, embedded = [], [], []
    with count(len(sample), "images to copy with changes") as report:
        for position in sample:
            picture = _shrunk(Picture.fromarray(transform.decoded(paths[position])))
            changed = [change(picture, rng) for change in copies.CHANGES]
            originals.append(copies.small(picture))
            made += [copies.small(copy) for copy in changed]
            embedded.append(encoder.embed(changed))
            report(1)
    queries = torch.cat(embedded).numpy()
    owner = np.repeat(sample, len(copies.CHANGES))
    found = (nearest(queries, features, min(K, len(features)))[1] == owner[:, None]).any(1)
    own = F.normalize(torch.from_numpy(np.array(features[sample], np.float32)), dim=1)
    unit = F.normalize(torch.from_numpy(queries), dim=1).view(len(sample), -1, own.shape[1])
    cosines = (unit @ own[:, :, None])[:, :, 0].numpy()  # (S, kinds)
    numbers = np.arange(len(made))
    links = np.stack([numbers // len(copies.CHANGES), len(sample) + numbers], axis=1)
    agreements = copies.agreement(np.stack(originals + made), links).reshape(cosines.shape)
    cosine, agreement = (float(np.quantile(values[::2], MISSED)) for values in (cosines, agreements))
    right = found.reshape(cosines.shape) & (cosines >= cosine) & (agreements >= agreement)
    different = np.stack(np.nonzero(np.triu((own @ own.T).numpy() < cosine, 1)), axis=1)
    agree = copies.agreement(np.stack(originals), different) >= agreement
    names = [change.__name__ for change in copies.CHANGES]
    recall = dict(zip(names, right[1::2].mean(0).tolist(), strict=True))
    return Calibration(cosine, agreement, recall, len(right[1::2]), len(different), int(agree.sum()))


def _shrunk(picture: Picture.Image) -> Picture.Image:
    scale = min(1, SHORT_SIDE / min(picture.size))
    return picture.resize([max(1, round(scale * side)) for side in picture.size], Picture.Resampling.BICUBIC)


def find(
    features: np.ndarray, paths: Sequence[Path], transform: Transform, thresholds: Calibration, count: Count
) -> Pairs:
    """All pairs of copies.

    Raises:
        ValueError, OSError: an image cannot be read.
    """
    pairs, cosines = copies.candidates(features, K, thresholds.cosine)
    involved, numbers = np.unique(pairs, return_inverse=True)
    with tempfile.TemporaryFile() as file:
        shape = (max(1, len(involved)), copies.SIDE, copies.SIDE)
        small = np.memmap(file, np.uint8, "w+", shape=shape)
        _read([paths[position] for position in involved], transform, small, count)
        agreements = copies.agreement(small, numbers.reshape(pairs.shape), count)
    kept = agreements >= thresholds.agreement
    return Pairs(pairs[kept], cosines[kept], agreements[kept], len(pairs))


def _read(paths: Sequence[Path], transform: Transform, small: np.ndarray, count: Count) -> None:
    """Read images into (n, SIDE, SIDE) uint8, in several processes if there are many."""

    def fill(batch: int, rows: slice, arrays: list[np.ndarray]) -> None:
        first = batch * BATCH
        for path, target in zip(paths[first + rows.start : first + rows.stop], arrays[0], strict=True):
            target[:] = copies.small(Picture.fromarray(transform.decoded(path)))

    batches = range(-(-len(paths) // BATCH))
    arrays = [ring.Array((copies.SIDE, copies.SIDE), np.uint8)]
    workers = cores() if len(paths) > FEW else 0
    filled = ring.filled(fill, batches, lambda batch: min(BATCH, len(paths) - batch * BATCH), arrays, workers)
    with count(len(paths), "images to read") as report:
        for batch, (images,) in zip(batches, filled, strict=True):
            small[batch * BATCH : batch * BATCH + len(images)] = images
            report(len(images))
