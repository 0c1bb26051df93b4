"""What a training step is made of, on the training device."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """The N images that this rank contributes to a step.

    Args:
        views: V tensors (N, 3, S, S) float32, normalised; an image keeps its row in all of them.
        labels: (N,) int64, -1 where an image has none.
        positions: (N,) int64, of the images in the index: the same in every epoch.
        groups: (N,) int64, -1 for an image without one; None where the data has no groups (frames of a video,
            tiles of a slide). Images of one group are never negatives of each other.
    """

    views: list[Tensor]
    labels: Tensor
    positions: Tensor
    groups: Tensor | None = None

    def row_groups(self, per_image: int = 1) -> Tensor | None:
        """(N E,): the group of each of an image's E embeddings, image-major; None if the data has no groups.

        An image without a group forms a group of its own, -1 - position, which no other image has.
        """
        if self.groups is None:
            return None
        own = -1 - self.positions
        return self.groups.where(self.groups >= 0, own).repeat_interleave(per_image)
