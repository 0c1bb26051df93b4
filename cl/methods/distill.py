"""Distillation: the student's queries against a queue of a frozen teacher's features."""

from dataclasses import replace
from itertools import cycle
from typing import ClassVar, Literal

import torch

from cl.methods import Setup
from cl.methods._shared.queue_method import QueueMethod, QueueMethodConfig
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.terms import Contrast


class Config(QueueMethodConfig):
    """`teacher_views`: what the teacher sees.

    fixed: the centre of each image, encoded once, before training.
    same: each of the student's views, encoded in each step.
    """

    gives: ClassVar = {*QueueMethodConfig.gives, "pairs", "teacher"}
    least_views: ClassVar = 1
    large: ClassVar = 1  # views have the same role; the first has its own pass
    kind: Literal["distill"]
    teacher_views: Literal["fixed", "same"]


class Method(QueueMethod):
    """MoCo whose target encoder is a teacher and never moves (SEED, Fang et al. 2021, section 3.2).

    The rows of an image in the queue are never its own negatives: they may equal its key.
    """

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.fixed, self.teacher = config.teacher_views == "fixed", setup.teacher

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N queries with the whole queue as negatives for each view."""
        assert self.teacher is not None
        if batch.groups is None:  # each image is a group
            batch = replace(batch, groups=torch.full_like(batch.positions, -1))
        seen = batch.views[:1] if self.fixed else batch.views
        keys = [self.teacher.embed(view, batch.positions)[:, None] for view in seen]  # (N, 1, D) each
        queries = in_passes(self.embed, batch.views, separate=1)  # (N, D) each
        self.enqueue_after_step(torch.cat(keys, 1), batch)
        return [self.against_queue(q, key, batch) for q, key in zip(queries, cycle(keys), strict=False)]
