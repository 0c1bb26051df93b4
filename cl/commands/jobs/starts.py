"""The encoders that are at hand, how well their features tell images apart, and useful columns of a table."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from cl.commands.classifiers.heads import FOLDS, Fold, folds_of
from cl.commands.defaults import ENCODER
from cl.commands.embed import embed
from cl.commands.inputs.labels import Labels
from cl.commands.inputs.sample import Sample
from cl.commands.jobs import trial
from cl.commands.paths import File
from cl.data.transform import Transform
from cl.data.views import RandomNumbers, random_crop_box
from cl.encoders.encoder import MEAN, STD, Encoder, opened
from cl.encoders.published import downloaded
from cl.features.extraction import PIXELS as SIDE
from cl.features.extraction import Pixels
from cl.features.knn import nearest_in_array
from cl.features.scores import correct_in_parts, nearest_agrees
from cl.images.table import column_of
from cl.networks.backbones import Backbone
from cl.statistics import Interval, independent, inflation, interval

PIXELS = "raw pixels"  # the name of an encoder that nobody trained
MOST = 4  # downloaded encoders that are measured
K, NEIGHBOURS = 20, 10  # that vote; that an image and a part of it should share
FEW_VALUES = 10  # of a column that may say where or how images were taken
PART = (0.5, 1.0)  # of the image's area
Measures = dict[str, tuple[float, Interval | None]]  # percentages with 95 % intervals


@dataclass
class Start:
    """An encoder and its features (N, D) of the images."""

    name: str  # what it was loaded from
    encoder: Encoder
    features: np.ndarray
    milliseconds: float  # per image, here, with decoding
    measures: Measures  # see `by_labels` and `by_neighbours`

    @property
    def title(self) -> str:
        """Its name, and the side of its images."""
        return f"{self.name}, {self.encoder.transform.crop} px"

    @property
    def megabytes(self) -> float:
        """The size of the weights."""
        return sum(each.numel() * each.element_size() for each in self.encoder.parameters()) / 1e6

    @property
    def score(self) -> float:
        """The mean of the measures."""
        return float(np.mean([percent for percent, _ in self.measures.values()]))


class _Pixels(Pixels):
    """Pixels of images (N, 3, SIDE, SIDE) as the features of a network."""

    fc_features = 3 * SIDE**2

    def __init__(self) -> None:
        super().__init__()
        self.device = nn.Parameter(torch.empty(0))  # is moved as weights are


def find(given: Sequence[File], say: Callable[[str], None]) -> list[tuple[str, Encoder]]:
    """The given encoders with their names, or this folder's and those downloaded earlier; last, raw pixels.

    Each has its own size of images, and is there again with that of `own/adapt` if its file records none.
    """
    names = [fspath(name) for name in given] or [ENCODER] * Path(ENCODER).is_file() + downloaded()
    if not given and len(names) > MOST:
        say(f"not measured: {', '.join(names[MOST:])}; choose with --encoder")
        names = names[:MOST]
    found = []
    for name in names:
        try:
            encoder = opened(name)
            resize, crop = trial.sizes(encoder)
            if encoder.transform.bands:
                raise ValueError(f"{name} is an encoder of bands; `cl advise` compares encoders for RGB")
        except ValueError as error:
            if given:
                raise
            say(f"left out: {error}")
            continue
        found.append((name, encoder))
        if not encoder.records_size and crop != encoder.transform.crop:
            small = copy.copy(encoder)
            small.transform = encoder.transform.model_copy(update={"resize": resize, "crop": crop})
            found.append((name, small))
    pixels = Transform(resize=SIDE, crop=SIDE, mean=MEAN, std=STD, upright=True)
    return [*found, (PIXELS, Encoder(cast("Backbone", _Pixels()), pixels, PIXELS))]


def embedded(name: str, encoder: Encoder, files: Sequence[Path]) -> Start:
    """An encoder with its features of the images, not yet measured."""
    began = time.monotonic()
    found = embed(files, encoder=encoder)
    assert found and len(found.names) == len(files)
    return Start(name, encoder, found.features, 1000 * (time.monotonic() - began) / len(files), {})


def folds(labels: np.ndarray, together: np.ndarray, number: int) -> list[Fold]:
    """Of labelled images; equal numbers stay in one fold. Raises as `folds_of`."""
    names, codes = np.unique(labels, return_inverse=True)
    return folds_of(codes[:, None] == np.arange(len(names)), names.tolist(), together, number)


def by_labels(features: np.ndarray, labels: np.ndarray, together: np.ndarray, parts: list[Fold]) -> Measures:
    """Accuracies of kNN and logistic regression of `cl evaluate`, by cross-validation.

    The intervals are wider because folds share training images, as in `cl classify`.
    """
    found = correct_in_parts(features, labels, features, labels, parts, k=K)
    by_folds = inflation(len(parts))
    return {
        name: (100 * each.mean(), interval(100 * each.mean(), independent(each, together) / by_folds))
        for name, each in found.items()
        if name != "most frequent"
    }


def by_neighbours(start: Start, images: Sequence[np.ndarray]) -> Measures:
    """How many of the 10 nearest images of every second image are also nearest to a part of it."""
    parts = []
    for number, pixels in enumerate(images[1::2]):
        left, top, right, bottom = random_crop_box(pixels.shape[:2], PART, RandomNumbers(0, 0, number, 0))
        parts.append(np.ascontiguousarray(pixels[top:bottom, left:right]))
    rows, k = start.features, min(NEIGHBOURS, len(start.features) // 2)
    near = [
        nearest_in_array(each, rows[::2], k)[1] for each in (rows[1::2], start.encoder.embed(parts).numpy())
    ]
    shared = (near[0][:, :, None] == near[1][:, None]).any(2).mean()
    return {"same neighbours for a part": (100 * float(shared), None)}


def useful_columns(
    table: Labels | None, images: Sample, together: np.ndarray, start: Start
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Sentences about useful columns of the table besides path, label and split; their cells by image."""
    names, files = [*images.listed], [images.folder / name for name in images.listed]
    hints, found = [], {}
    for name in dict.fromkeys([*table.unread, "group"]) if table else ():
        if name == "group":
            cells = [group for _, group in images.listed.values()]
        elif column_of(name) == "split":
            continue
        else:
            assert table
            try:
                cells = table.with_column(name).cells(name, names, files).tolist()
            except ValueError:  # captions with line breaks, or two columns of a name
                continue
        known = dict(zip(names, cells, strict=True))
        of_files = np.array([known[str(file.relative_to(images.folder))] for file in images.files])
        if hint := suggestion(name, of_files, images.labels, together, start):
            hints.append(hint)
            found[name] = known
    return hints, found


def suggestion(
    name: str, cells: np.ndarray, labels: np.ndarray, together: np.ndarray, start: Start
) -> str | None:
    """A sentence about a column that looks useful as `dataset.within` or `dataset.positive`.

    Args:
        cells, labels: (N,), "" for nothing; a column that follows from labels is of no use.
        together: (N,), equal for images that are held out together.
    """
    known = cells != ""
    values, codes = np.unique(cells[known], return_inverse=True)
    if not 2 <= len(values) <= len(codes) / 2 or len({*zip(labels, cells, strict=True)}) == len({*labels}):
        return None
    use = _within if len(values) <= FEW_VALUES else _positive
    found = use(start.features[known], codes, together[known])
    return found and f"column {name}: {len(values)} values; {found}={name} may help"


def _within(features: np.ndarray, codes: np.ndarray, together: np.ndarray) -> str | None:
    """If logistic regression makes half as many errors as the most frequent value."""
    try:
        measures = by_labels(features, codes, together, folds(codes, together, FOLDS))
    except ValueError:  # a value has one image or group
        return None
    percent, within = measures["logistic regression"]
    chance = 100 * np.bincount(codes).max() / len(codes)
    if percent - chance < 100 - percent:
        return None
    return (
        f"features predict {percent:.0f} % {within or ''} of them, the most frequent is {chance:.0f} %; if "
        "they say where or how images were taken, dataset.within"
    )


def _positive(features: np.ndarray, codes: np.ndarray, together: np.ndarray) -> str | None:
    """If the nearest image has the same value more often than by chance."""
    shared, right, chance = nearest_agrees(features, codes)
    percent = 100 * right.mean()
    within = interval(percent, independent(right.astype(float), together[shared]))
    if within is None or within.low <= chance:
        return None
    return (
        f"the nearest image has the same for {percent:.0f} % {within}, by chance {chance:.0f} %; if they are "
        "objects or scenes, dataset.positive"
    )
