"""Adaptation: is the encoder that was trained on from `init` better than its start, on held-out images?"""

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cl.console.wording import counted
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import EvalSet, TrainSet
from cl.data.transform import Transform
from cl.data.views import View
from cl.features.correctness import all_same, check_different, correctness
from cl.features.extraction import BATCH, Unit, extract, extract_views
from cl.features.knn import nearest
from cl.networks.batch_norm import is_untrained
from cl.runtime.machine import Machine
from cl.statistics import PairedComparison, judge, separated

MOST = 20_000  # images of each split on which the two encoders are compared
NEIGHBOURS = 10  # training images that an image and a part of it should share
SEEN_OF_300 = 3.0  # the smallest difference, in points, that 300 images show (docs/results/compare.md)
START, ADAPTED = "the start encoder", "the adapted encoder"


@dataclass(frozen=True)
class Outcome:
    """The comparison of the start (A) with the adapted encoder (B).

    labelled: whether it is by the classes of the images.
    """

    comparison: PairedComparison
    labelled: bool

    @property
    def is_better(self) -> bool:
        """Whether the run hands over the adapted encoder."""
        return self.comparison.verdict == "better"

    @property
    def sentence(self) -> str:
        """What was found, and what the run hands over."""
        basis = "" if self.labelled else ", judged without labels"
        handed_over = ADAPTED if self.is_better else START
        return f"{self.comparison.sentence(START, ADAPTED)}{basis}; this run hands over {handed_over}"

    @property
    def notes(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self.comparison) | {"sentence": self.sentence, "labelled": self.labelled}


class SplitFeatures(NamedTuple):
    """An encoder's unit features of training images (N, D) and validation images (M, D).

    views: without labels, features (Q, D) of a random part of the validation images at `positions`, (Q,).
    """

    train: Tensor
    val: Tensor
    views: Tensor
    positions: Tensor


class Adaptation:
    """A backbone before and after it is trained on other images.

    Args:
        backbone: has the weights of `init`.
        train, val: images to compare the two encoders on: those with labels, if any.
        view: how views are drawn; without labels, parts of images are drawn likewise, with their colours.
    """

    def __init__(
        self, backbone: nn.Module, train: Reader, val: Reader, transform: Transform, view: View, here: Machine
    ) -> None:
        self.backbone, self.here = backbone, here
        self.sets = [EvalSet(reader, transform, reader.evaluated(MOST)) for reader in (train, val)]
        self.labelled = bool(train.manifest.classes)
        images = self.sets[1].positions
        size = len(images) // -(-len(images) // BATCH)  # few are left out
        plan = Plan(len(images), size, 0, ranks=1)
        self.views = TrainSet(val, transform, [part(view, transform.crop)], plan, subset=images)
        self.start = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
        self.before = self._features()
        check_start(backbone, self.before.train)

    @property
    def expectation(self) -> str:
        """What the held-out images can tell, known before the training."""
        images = self.sets[1].positions
        groups = len(np.unique(self._groups(images)))
        known = counted(len(images), "labelled images" if self.labelled else "images")
        known += f" of {counted(groups, 'groups')}" if groups < len(images) else ""
        smallest = SEEN_OF_300 * math.sqrt(300 / groups)
        few = "; hold out 100 or more (dataset.holdout), or expect the start back" if groups < 100 else ""
        return f"held out: {known}, which can hardly show differences below {smallest:.1f} points{few}"

    def keep_better(self, seed: int) -> Outcome:
        """Compare the encoders, and leave the better one in the backbone; a collapsed one is worse."""
        scores, images = self._scores(self.before, self._features(), seed)
        outcome = Outcome(judge(scores, self._groups(images), seed=seed), self.labelled)
        if not outcome.is_better:
            self.backbone.load_state_dict(self.start)
        return outcome

    def _features(self) -> SplitFeatures:
        train, val = (extract(self.backbone, images, self.here) for images in self.sets)
        if self.labelled:
            return SplitFeatures(train, val, val[:0], val[:0].long())
        positions, (views,) = extract_views(Unit(self.backbone.eval(), []), self.views, self.here, MOST)
        return SplitFeatures(train, val, views, positions)

    def _scores(
        self, before: SplitFeatures, after: SplitFeatures, seed: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The measures of both encoders, (M, 2) each, and the positions (M,) of their validation images."""
        if self.labelled:
            labels = [torch.from_numpy(images.reader.labels(images.positions)) for images in self.sets]
            train, val = (before.train, after.train), (before.val, after.val)
            return correctness(train, labels[0], val, labels[1], seed=seed), self.sets[1].positions
        both = np.stack([same_neighbours(each) for each in (before, after)], 1)
        measure = f"same {NEIGHBOURS} neighbours for a part of the image"
        return {measure: both}, before.positions.cpu().numpy()

    def _groups(self, images: np.ndarray) -> np.ndarray:
        """The groups (M,) of validation images; an image without one is a group of its own."""
        groups = self.sets[1].reader.groups
        return separated(None if groups is None else groups[images], len(images))


def part(view: View, side: int) -> View:
    """At least half of an image, at this size and perhaps flipped, with its own colours."""
    plain: dict[str, Any] = {"order": [], "photometric": None, "jigsaw": None}
    return view.model_copy(update={"count": 1, "size": side, "area": (0.5, 1.0), **plain})


def same_neighbours(features: SplitFeatures) -> np.ndarray:
    """(Q,) percent: how many training images are nearest both to a part of an image and to the image.

    0 if all images have the same features: none is nearest.
    """
    if all_same(features.train):
        return np.zeros(len(features.positions))
    own, count = features.val[features.positions], min(NEIGHBOURS, len(features.train))
    near = [
        torch.cat([found for _, _, found in nearest(rows, features.train, count)])
        for rows in (own, features.views)
    ]
    shared = (near[0][:, :, None] == near[1][:, None]).any(2).double().mean(1)
    return 100 * shared.cpu().numpy()


def check_start(backbone: nn.Module, train: Tensor) -> None:
    """Check that a backbone can be the start of an adaptation.

    Raises:
        ValueError: it was never trained, or its features (N, D) of the training images are all the same.
    """
    if is_untrained(backbone):
        raise ValueError(
            "init has untrained weights: every bias of its normalisation layers is 0; give a trained "
            "encoder, or train one from scratch with recipe=own/small"
        )
    check_different(train, "init")
