"""Adaptation: trains the backbone of `init` on other images, and keeps the result only if it is better."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from cl.data.reader import Reader
from cl.data.sets import EvalSet
from cl.data.transform import Transform
from cl.features.correctness import check
from cl.features.extraction import extract
from cl.features.paired import Comparison, compare
from cl.networks.batch_norm import GroupBatchNorm
from cl.networks.depth import parameters_by_depth
from cl.pretraining.task import PretrainingTask
from cl.runtime.base_config import BaseConfig

MOST = 20_000  # images of each split on which the two encoders are compared
START, ADAPTED = "the start encoder", "the adapted encoder"
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm, GroupBatchNorm)
NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)


class Config(BaseConfig):
    """How the backbone of `init` is trained; its batch norms keep their statistics.

    frozen: share of its blocks, from the stem on, that stay as they are.
    average: weight of the trained backbone in its average with the start (WiSE-FT, Wortsman et al. 2022,
        section 3); 1: the trained backbone alone.
    """

    frozen: float = Field(ge=0, lt=1)
    average: float = Field(gt=0, le=1)


@dataclass(frozen=True)
class Outcome:
    """The comparison of the start (A) with the adapted encoder (B) on held-out images."""

    comparison: Comparison

    @property
    def notes(self) -> dict[str, Any]:
        """For the report."""
        return {"adaptation": asdict(self.comparison) | {"sentence": self.sentence}}

    @property
    def is_better(self) -> bool:
        """Whether the run hands over the adapted encoder."""
        return self.comparison.verdict == "better"

    @property
    def sentence(self) -> str:
        handed_over = ADAPTED if self.is_better else START
        return f"{self.comparison.sentence(START, ADAPTED)}; this run hands over {handed_over}"


class Adaptation:
    """A backbone before and after it is trained on other images.

    Args:
        task: has the weights of `init`.
        train, val: the labelled images are used to compare the two encoders.

    Raises:
        ValueError: the weights are untrained, or give features that are all the same or not finite.
    """

    def __init__(
        self, config: Config, task: PretrainingTask, train: Reader, val: Reader, transform: Transform
    ) -> None:
        self.config, self.task = config, task
        self.backbone = task.method.evaluated[0]
        self.sets = [EvalSet(reader, transform, reader.evaluated(MOST)) for reader in (train, val)]
        self.start = {name: tensor.clone() for name, tensor in self.backbone.state_dict().items()}
        self.features = self._features()
        check_start(self.backbone, *self.features)

    def finish(self, seed: int) -> Outcome:
        """Average the weights, compare the encoders, and leave the better one in the backbone."""
        self.backbone.load_state_dict(average(self.start, self.backbone.state_dict(), self.config.average))
        (train, val), labels = zip(self.features, self._features(), strict=True), self._labels()
        outcome = Outcome(compare(train, labels[0], val, labels[1], self._groups(), seed=seed))
        if not outcome.is_better:
            self.backbone.load_state_dict(self.start)
        return outcome

    def _groups(self) -> np.ndarray | None:
        """(M,): groups of the validation images; images without one are groups of their own."""
        images = self.sets[1]
        groups = images.reader.groups
        if groups is None:
            return None
        from cl.features.classifier import separated  # late: scipy.optimize is slow to import

        return separated(groups[images.positions], len(images))

    def _features(self) -> list[Tensor]:
        return [extract(self.backbone, images, self.task.machine) for images in self.sets]

    def _labels(self) -> list[Tensor]:
        return [torch.from_numpy(images.reader.labels(images.positions)) for images in self.sets]


def freeze(task: PretrainingTask, share: float) -> None:
    """Fix the first blocks of the backbone, and the statistics of its batch norms."""
    backbone = task.method.evaluated[0]
    layers = parameters_by_depth(backbone)
    for layer in layers[: round(share * len(layers))]:
        for parameter in layer:
            parameter.requires_grad_(False)
    task.fixed = [module for module in backbone.modules() if isinstance(module, BATCH_NORMS)]


def average(start: dict[str, Tensor], trained: dict[str, Tensor], weight: float) -> dict[str, Tensor]:
    """Weighted means start + weight (trained - start) of the tensors; those of integers as trained."""
    return {
        name: start[name].lerp(tensor, weight) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }


def check_start(backbone: nn.Module, train: Tensor, val: Tensor) -> None:
    """Check that a backbone can be the start of an adaptation.

    Raises:
        ValueError: it was never trained, or its features (N, D) of the training and validation images are not
            finite, or all the same.
    """
    norms = [module for module in backbone.modules() if isinstance(module, NORMS) and module.bias is not None]
    if norms and not any(norm.bias.any() for norm in norms):
        raise ValueError(
            "init has untrained weights: every bias of its normalisation layers is 0; give a trained "
            "encoder, or train one from scratch with recipe=own/small"
        )
    check(train, val, "init")
