"""Adaptation: which encoder a run from `init` hands over, its start or the best of those trained from it.

Training images choose between the trained ones, by labels that these were not trained with. Held-out images
then compare the chosen one with the start, so its number and the promise are from images that chose nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cl.console.wording import counted
from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.transform import Transform
from cl.features.copies import groups
from cl.features.correctness import all_same, check_different, correctness
from cl.features.extraction import extract
from cl.features.series import series
from cl.networks.batch_norm import is_untrained
from cl.runtime.machine import Machine
from cl.statistics import FEWEST, MeasureDifference, PairedComparison, judge, separated

MOST = 20_000  # images of each split on which encoders are compared
UNLABELLED = 100  # images that show whether `init` tells images apart
RUNS = 5  # on the same held-out images: that one of them says "better" by chance happens in 5 % of cases
TAIL = 0.05 / RUNS
CLASSES = 0.05  # that any class seems to have lost by chance
SEEN_OF_300 = 3.6  # the smallest difference, in points, that 300 images show; 3 in a 95 % interval
START, ADAPTED = "the start encoder", "the adapted encoder"


@dataclass(frozen=True)
class ClassDifference(MeasureDifference):
    """How the images of a class changed by the mean of all measures; corrected for the number of classes."""

    images: int

    @property
    def is_worse(self) -> bool:
        return self.high < 0


@dataclass(frozen=True)
class Outcome:
    """The comparison of the start (A) with an adapted encoder (B); None without labels.

    classes: of a better encoder, from the one that lost most; those that lost clearly come first.
    """

    comparison: PairedComparison | None = None
    classes: Sequence[ClassDifference] = ()

    @property
    def is_better(self) -> bool:
        """Whether the run hands over the adapted encoder: no class may have become clearly worse."""
        return len(self.classes) > 0 and not self.classes[0].is_worse

    @property
    def sentence(self) -> str:
        """What was found, and what the run hands over."""
        if not self.comparison:
            return (
                f"without labels of at least two classes, nothing shows whether {ADAPTED} is better: 50 "
                f"labelled images in the validation split would show differences of {smallest_seen(50):.0f} "
                f"points, 300 of {smallest_seen(300):.0f}; this run hands over {START}"
            )
        found = [self.comparison.sentence(START, ADAPTED)]
        for worst in self.classes[:1]:
            name = f"{worst.measure} ({counted(worst.images, 'images')}, {worst.a:.1f} to {worst.b:.1f} %)"
            change = "lost most" if worst.difference < 0 else "gained least"
            found.append(f"a class lost clearly, {name}" if worst.is_worse else f"{name} {change}")
        return "; ".join([*found, f"this run hands over {ADAPTED if self.is_better else START}"])

    @property
    def notes(self) -> dict[str, Any]:
        """For the report."""
        comparison = asdict(self.comparison) if self.comparison else {"rows": []}
        classes = [asdict(each) for each in self.classes]
        judged = {"is_better": self.is_better, "sentence": self.sentence}
        return comparison | judged | {"classes": classes, "paid_runs": RUNS}


class Adaptation:
    """A backbone with the weights of `init`, before it is trained on other images, to compare afterwards.

    If `ungrouped`, it looks for no images that belong together.
    """

    def __init__(
        self,
        backbone: nn.Module,
        train: Reader,
        val: Reader,
        transform: Transform,
        here: Machine,
        *,
        ungrouped: bool = False,
    ) -> None:
        several = len(np.unique(train.labels(train.labelled))) > 1
        self.here, self.labelled = here, several and len(val.labelled) > 0
        both = (train, val)
        some = [r.evaluated(MOST) if self.labelled else r.part(len(r), UNLABELLED) for r in both]
        self.sets = [EvalSet(reader, transform, at) for reader, at in zip(both, some, strict=True)]
        self.start = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
        self.before = self._features(backbone)
        check_start(backbone, self.before[0])
        self.groups, self.has_bursts = self._groups(ungrouped=ungrouped)
        self.bank = ~np.isin(self.groups[0], self.groups[1])  # training images of no held-out burst
        self.labels = [images.reader.labels(images.positions) for images in self.sets]
        if self.labelled and len(np.unique(self.labels[0][self.bank])) < 2:
            raise ValueError(
                "nearly all training images are in a burst with held-out ones, which would make results too "
                "good; hold out whole bursts by a column group, or choose ungrouped=true if each image "
                "stands alone"
            )

    @property
    def expectation(self) -> str:
        """What the held-out images can tell, known before the training."""
        if not self.labelled:
            return Outcome().sentence
        images, found = len(self.sets[1]), len(np.unique(self.groups[1]))
        known = counted(images, "labelled images")
        if found < images and self.has_bursts:
            kind = "bursts" if self.sets[1].reader.groups is None else "groups or bursts"
            known += (
                f" in about {counted(found, kind)} (by names, times and features; give a column group "
                "instead, or ungrouped=true if each image stands alone)"
            )
        elif found < images:
            known += f" in {counted(found, 'groups')}"
        few = "; hold out 100 or more (dataset.holdout), or expect the start back" if found < 100 else ""
        least = f"{smallest_seen(found):.1f} points"
        return f"held out: {known}, which can hardly show differences below {least}{few}"

    def quality(self, backbone: nn.Module, seed: int) -> float:
        """How well a half of the training images is classified from the other half, in percent.

        Groups are in one half, images of a held-out burst in none. The mean of the measures of `correctness`,
        to choose between arms.
        """
        rows = self._features(backbone)[0][self.bank]
        labels, together = self.labels[0][self.bank], self.groups[0][self.bank]
        number = np.unique(together, return_inverse=True)[1]
        half = np.random.default_rng(seed).permutation(number.max() + 1)[number] % 2 == 1
        if all_same(rows) or len(np.unique(labels[~half])) < 2 or not half.any():
            return 0.0
        found = correctness((rows[~half],), labels[~half], (rows[half],), labels[half], seed=seed)
        return float(np.mean(list(found.values())))

    def judged(self, backbone: nn.Module, seed: int) -> Outcome:
        """The comparison of a trained backbone with its start."""
        if not self.labelled:
            return Outcome()
        after, (labels, truth) = self._features(backbone), self.labels
        banks = self.before[0][self.bank], after[0][self.bank]
        scores = correctness(banks, labels[self.bank], (self.before[1], after[1]), truth, seed=seed)
        classes = self.sets[0].reader.manifest.classes
        return verdict(scores, [classes[label] for label in truth], self.groups[1], seed)

    def _features(self, backbone: nn.Module) -> list[Tensor]:
        """(N, D) of the training images and (M, D) of the held-out ones."""
        return [extract(backbone, images, self.here) for images in self.sets]

    def _groups(self, *, ungrouped: bool) -> tuple[list[np.ndarray], bool]:
        """A number for each image of both splits, equal in a group or burst; whether bursts are held out.

        Bursts are looked for among images without a group.
        """
        both = [(images.reader, position) for images in self.sets for position in images.positions.tolist()]
        given = np.array([-1 if r.groups is None else r.groups[position] for r, position in both])
        val = np.arange(len(both)) >= len(self.sets[0])
        number = separated(np.where(given < 0, -1, 2 * given + val), len(both))  # groups are within a split
        free = np.flatnonzero(given < 0)
        if len(free) and self.labelled and not ungrouped:
            images = [both[image] for image in free]
            pairs = series(
                [torch.cat(self.before).cpu().numpy()[free]],
                [reader.keys[position].decode() for reader, position in images],
                np.array([reader.labels(position) for reader, position in images]),
                np.array([reader.taken_at(position) for reader, position in images]),
            )
            number[free] = number.max() + 1 + groups(len(free), pairs)
        alone = number[(given < 0) & val]
        return np.split(number, [len(self.sets[0])]), len(np.unique(alone)) < len(alone)


def verdict(
    scores: dict[str, np.ndarray], classes: Sequence[str], together: np.ndarray, seed: int
) -> Outcome:
    """What scores (M, 2) of held-out images, of these classes and groups, say, and which classes lost."""
    comparison = judge(scores, together, seed=seed, tail=TAIL)
    if comparison.verdict != "better":
        return Outcome(comparison)
    names, mean = np.array(classes, object), np.mean(list(scores.values()), 0)
    counts = {name: len(np.unique(together[names == name])) for name in np.unique(names)}
    rare = [name for name, count in counts.items() if count < FEWEST]  # too few for an interval each
    names[np.isin(names, rare)] = counted(len(rare), "rare classes")
    found, tail = [], CLASSES / len(np.unique(names))
    for name in np.unique(names):
        of_class = names == name
        row = judge({"mean": mean[of_class]}, together[of_class], seed=seed, tail=tail).overall
        found.append(ClassDifference(**asdict(row) | {"measure": name}, images=int(of_class.sum())))
    return Outcome(comparison, sorted(found, key=lambda each: (not each.is_worse, each.difference)))


def smallest_seen(images: float) -> float:
    """The smallest difference, in points, that this number of independent images shows."""
    return SEEN_OF_300 * math.sqrt(300 / images)


def check_start(backbone: nn.Module, train: Tensor) -> None:
    """Raises ValueError if a backbone was never trained, or gives all training images the same features."""
    if is_untrained(backbone):
        raise ValueError("init has untrained weights: all biases of its norms are 0; give a trained encoder")
    check_different(train, "init")
