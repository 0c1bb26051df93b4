"""Images that are copies of each other but for size, compression, a small crop, mirroring or brightness.

Candidates are the nearest images by features, and by small versions. They are copies if the cosine of their
features and the agreement of their pixels (`cl.features.copies.agreement`) are as large as in made copies.
"""

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image as Picture

from cl.console.progress import Count
from cl.data import ring
from cl.data.transform import Transform
from cl.encoders.encoder import Encoder
from cl.features import copies
from cl.features.extraction import BATCH, FEW
from cl.features.knn import nearest_in_array
from cl.images.decoding import MAX_SIDE
from cl.runtime.cores import cores
from cl.runtime.cores import workers as data_workers
from cl.runtime.machine import MOST_WORKERS

K = 50  # nearest images by features
K_PIXELS = 10  # and by small versions
SAMPLE, TOGETHER = 200, 10  # images that are copied; at a time, as an encoder is slow with few
MISSED = 0.01, 0.05  # of the made copies, by the threshold of agreement: usually, and at most
DIFFERENT = 0.99  # of the pairs of sampled images at least
SHORT_SIDE = 512  # pixels of an image that is copied, at most


@dataclass(frozen=True)
class Calibration:
    """Thresholds from copies of half of the sampled images, and how they do on the others.

    All of these copies reach `cosine`; if 99 % of the pairs of images have less, it is halfway between both.
    99 % of these copies reach `agreement`; if different images reach more, it is halfway to them, but such
    that 95 % of the copies reach it. Pairs count as different if their cosine is too small for copies, or
    among the 99 % smallest. This leaves out real copies, which are few of all pairs.
    """

    cosine: float
    agreement: float
    recall: dict[str, float]  # the share of the other half's copies that are found, by kind of change
    copies: int  # of the other half, of one kind; none from a single image
    different: int  # pairs with an image of the other half that count as different
    false_agreements: int  # of these, how many reach the threshold of agreement


@dataclass(frozen=True)
class Pairs:
    """m pairs of copies."""

    positions: np.ndarray  # (m, 2), the smaller first
    cosines: np.ndarray
    agreements: np.ndarray


@dataclass(frozen=True)
class DescribedImages:
    """N images."""

    features: np.ndarray  # (N, D)
    small: np.ndarray  # (N, SIDE, SIDE) uint8, from `copies.small`
    descriptors: np.ndarray  # (N, 480), from `copies.descriptors`
    mirrored: np.ndarray  # (N, 480), of their mirror images


def find(
    features: np.ndarray, paths: Sequence[Path], encoder: Encoder, count: Count
) -> tuple[Calibration, Pairs]:
    """Thresholds from made copies, and all pairs of copies among N images with features (N, D) of any length.

    Small versions of the images are in temporary files.
    """
    with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
        small = _in_file(first, np.uint8, (len(paths), copies.SIDE, copies.SIDE))
        _read(paths, encoder.transform, small, count)
        width = copies.descriptors(small[:1]).shape[1]
        described = _in_file(second, np.float16, (2, len(paths), width))
        for start in range(0, len(paths), BATCH):
            block = slice(start, start + BATCH)
            described[0, block] = copies.descriptors(small[block])
            described[1, block] = copies.descriptors(small[block, :, ::-1])
        images = DescribedImages(features, small, *described)
        calibration = calibrate(images, paths, encoder, count)
        return calibration, copies_among(images, calibration, count)


def _in_file(file: IO[bytes], dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """An array in a file whose space is reserved: on a full disk, writing would otherwise end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, math.prod(shape) * np.dtype(dtype).itemsize)
    return np.memmap(file, dtype, "w+", shape=shape)


def calibrate(images: DescribedImages, paths: Sequence[Path], encoder: Encoder, count: Count) -> Calibration:
    """Make copies of a sample of distinct images; compare them with these, and these with each other."""
    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(len(paths), min(SAMPLE, len(paths)), replace=False))
    _, distinct = np.unique(images.small[sample].reshape(len(sample), -1), axis=0, return_index=True)
    sample = sample[np.sort(distinct)]
    queries, small = _made_copies([paths[position] for position in sample], rng, encoder, count)
    kinds = [change.__name__ for change in copies.CHANGES]
    near = _is_near(queries, small, images, sample.repeat(len(kinds))).reshape(-1, len(kinds))
    own = np.array(images.features[sample], np.float32)
    originals = np.arange(len(sample)).repeat(len(kinds))
    links = np.stack([originals, len(sample) + np.arange(len(small))], axis=1)
    cosines = copies.cosines_of(np.concatenate([own, queries]), links).reshape(near.shape)
    agreements = copies.agreement(np.concatenate([images.small[sample], small]), links).reshape(near.shape)

    pairs = np.stack(np.triu_indices(len(sample), 1), axis=1)
    between = copies.cosines_of(own, pairs)
    least = float(cosines[::2].min())
    usual = float(np.quantile(between, DIFFERENT)) if len(between) else least
    cosine = min(least, (least + usual) / 2)
    different = pairs[between < max(cosine, usual)]
    others, is_first_half = copies.agreement(images.small[sample], different), (different % 2 == 0).all(1)
    low, high = np.quantile(agreements[::2], MISSED)
    agreement = float(np.clip((low + others[is_first_half].max(initial=-1)) / 2, low, high))

    right = (near & (cosines >= cosine) & (agreements >= agreement))[1::2]
    wrong = others[~is_first_half] >= agreement
    recall = dict(zip(kinds, (right.sum(0) / max(1, len(right))).tolist(), strict=True))
    return Calibration(cosine, agreement, recall, len(right), len(wrong), int(wrong.sum()))


def _made_copies(
    paths: Sequence[Path], rng: np.random.Generator, encoder: Encoder, count: Count
) -> tuple[np.ndarray, np.ndarray]:
    """Features (S kinds, D) and small versions (S kinds, SIDE, SIDE) of copies of S images, by image."""
    features, small = [], []
    with count(len(paths), "images, changed to find near copies (2 of 3)") as report:
        for start in range(0, len(paths), TOGETHER):
            some = paths[start : start + TOGETHER]
            pictures = [_shrunk(Picture.fromarray(encoder.transform.decoded(path))) for path in some]
            made = [change(picture, rng) for picture in pictures for change in copies.CHANGES]
            features.append(encoder.embed(made))
            small += [copies.small(copy) for copy in made]
            report(len(some))
    return torch.cat(features).numpy(), np.stack(small)


def _is_near(
    queries: np.ndarray, small: np.ndarray, images: DescribedImages, owner: np.ndarray
) -> np.ndarray:
    """(n,): whether copies (n, D) and (n, SIDE, SIDE) have their originals among their candidates."""
    near = np.zeros(len(owner), bool)
    for rows, bank, k in (
        (queries, images.features, K),
        (copies.descriptors(small), images.descriptors, K_PIXELS),
        (copies.descriptors(small[:, :, ::-1]), images.descriptors, K_PIXELS),
    ):
        near |= (nearest_in_array(rows, bank, min(k, len(bank)))[1] == owner[:, None]).any(1)
    return near


def _shrunk(picture: Picture.Image) -> Picture.Image:
    scale = min(1, SHORT_SIDE / min(picture.size), MAX_SIDE["jpeg"] / max(picture.size))
    width, height = (max(1, round(scale * side)) for side in picture.size)
    return picture.resize((width, height), Picture.Resampling.BICUBIC)


def copies_among(images: DescribedImages, thresholds: Calibration, count: Count) -> Pairs:
    """All pairs of copies."""
    candidates = [
        copies.neighbour_pairs(images.features, images.features, K, thresholds.cosine),
        copies.neighbour_pairs(images.descriptors, images.descriptors, K_PIXELS),
        copies.neighbour_pairs(images.mirrored, images.descriptors, K_PIXELS),
    ]
    pairs = np.unique(np.concatenate(candidates), axis=0)
    cosines = copies.cosines_of(images.features, pairs)
    pairs, cosines = pairs[cosines >= thresholds.cosine], cosines[cosines >= thresholds.cosine]
    agreements = copies.agreement(images.small, pairs, count)
    kept = agreements >= thresholds.agreement
    return Pairs(pairs[kept], cosines[kept], agreements[kept])


def _read(paths: Sequence[Path], transform: Transform, small: np.ndarray, count: Count) -> None:
    """Read images into (n, SIDE, SIDE) uint8, in several processes if there are many."""

    def fill(batch: int, rows: slice, arrays: list[np.ndarray]) -> None:
        first = batch * BATCH
        for path, target in zip(paths[first + rows.start : first + rows.stop], arrays[0], strict=True):
            target[:] = copies.small(Picture.fromarray(transform.decoded(path)))

    batches = range(-(-len(paths) // BATCH))
    arrays = [ring.Array((copies.SIDE, copies.SIDE), np.uint8)]
    workers = data_workers(min(MOST_WORKERS, cores() - 1)) if len(paths) > FEW else 0
    filled = ring.filled(fill, batches, lambda batch: min(BATCH, len(paths) - batch * BATCH), arrays, workers)
    with count(len(paths), "images, read to find near copies (1 of 3)") as report:
        for batch, (images,) in zip(batches, filled, strict=True):
            small[batch * BATCH : batch * BATCH + len(images)] = images
            report(len(images))
