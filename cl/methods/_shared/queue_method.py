"""Methods with a queue of keys: from a target encoder (MoCo, MoCo with CLD) or a teacher."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from cl.methods import BaseMethod, MethodConfig, Setup
from cl.networks.passes import image_major
from cl.networks.queue import Queue
from cl.networks.target import Ema, Target
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives, gather_groups, paired
from cl.objective.terms import Contrast, of_same_value
from cl.runtime.distributed import gather


class QueueMethodConfig(MethodConfig):
    """The length of the queue."""

    gives: ClassVar = {"contrasts", "queue"}
    queue: int = Field(gt=0, description="keys")


class QueueMethod(BaseMethod):
    """After each step, the target encoder moves, if there is one, and the step's keys are enqueued."""

    _new: tuple[Tensor, Tensor | None, Tensor | None]

    def __init__(self, config: QueueMethodConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.queue = Queue(config.queue, config.projector.out, within=setup.within)

    def against_queue(self, queries: Tensor, keys: Tensor, batch: Batch) -> Contrast:
        """N queries (N, D), each with its P keys (N, P, D), against the whole queue."""
        groups = paired(batch.row_groups(), self.queue.groups)
        negatives = Negatives(self.queue.rows, groups=groups, within=paired(batch.within, self.queue.within))
        return self.contrast(queries, keys, negatives, others=of_same_value(keys, batch))

    def enqueue_after_step(self, keys: Tensor, batch: Batch) -> None:
        """Let `after_step` enqueue the E keys of each image (N, E, D) of all ranks, in the order of keys."""
        numbers = gather_groups(batch.row_groups()), gather_groups(batch.within)
        groups, within = (None if each is None else each.repeat(keys.shape[1]) for each in numbers)
        self._new = gather(keys).transpose(0, 1).flatten(0, 1), groups, within

    def after_step(self, progress: float) -> None:
        """As in the paper, the target encoder moves before the next keys are computed."""
        super().after_step(progress)
        keys, groups, within = self._new
        self.queue.enqueue(keys, groups, self.generator("queue"), within)


class TargetQueueConfig(QueueMethodConfig):
    """`shuffle`: ShuffleBN between batch-norm groups."""

    ema: Ema
    shuffle: bool


class TargetQueueMethod(QueueMethod):
    """A target encoder gives the keys."""

    target: Target

    def __init__(self, config: TargetQueueConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.shuffle = config.shuffle

    def encode_keys(self, views: list[Tensor], purpose: str) -> Tensor:
        """P views of N images in one pass to (N, P, D)."""
        images = image_major(views)
        order = self.shuffled(len(images), purpose) if self.shuffle else None
        return self.target.embed(images, order).unflatten(0, (-1, len(views)))
