"""The input of a training step, on the training device."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """The N images that this rank contributes to a step.

    views: V tensors (N, 3, S, S) float32, normalised; an image has the same row in all of them.
    labels: (N,) int64, -1 for an image without a label.
    positions: (N,) int64, the images' positions in the index, which are the same in every epoch.
    groups: (N,) int64, -1 for an image without a group; None where the data has no groups (frames of a video,
        tiles of a slide). Images of one group are never negatives of each other.
    positive: (N / k, k) int64, in each row the values of k images that were drawn together. Those with equal
        values are positives of each other. None where the data has no such column.
    within: (N,) int64. Only images with equal values are negatives of each other; None as above.
    """

    views: list[Tensor]
    labels: Tensor
    positions: Tensor
    groups: Tensor | None = None
    positive: Tensor | None = None
    within: Tensor | None = None

    def row_groups(self, per_image: int = 1) -> Tensor | None:
        """(N E,): the group of each of an image's E embeddings, image-major; None if the data has no groups.

        An image without a group gets the group -1 - position, which no other image has.
        """
        if self.groups is None:
            return None
        return self.groups.where(self.groups >= 0, -1 - self.positions).repeat_interleave(per_image)

    def row_within(self, per_image: int = 1) -> Tensor | None:
        """(N E,): the value of `within` of each of an image's E embeddings, image-major; None without it."""
        return None if self.within is None else self.within.repeat_interleave(per_image)
