"""Invariant Spread: a softmax over the embeddings of the batch, in which each image is a class."""

from typing import Literal

import torch

from cl.methods import BaseMethod, MethodConfig, pairs
from cl.networks.passes import in_passes
from cl.objective.batch import Batch
from cl.objective.negatives import Negatives
from cl.objective.terms import Contrast
from cl.runtime.distributed import gather


class Config(MethodConfig):
    """No further parameters. `scale`: 1 is the mean over the 2N embeddings."""

    kind: Literal["invariant_spread"]


class Method(BaseMethod):
    """Ye et al. 2019, section 3.2: positives and negatives do not get a gradient."""

    def forward(self, batch: Batch) -> list[Contrast]:
        """Every view is contrasted with the first two; views of one size are encoded in one pass.

        Its positive is another view of its image, and its negatives are both views of all other images.
        """
        queries = in_passes(self.embed, batch.views, separate=0)  # V x (N, D)
        keys = [view.detach() for view in queries[:2]]
        all_keys = gather(torch.stack(keys, 1).flatten(0, 1))  # (2N of all ranks, D), image-major
        negatives = Negatives.of_other_images(all_keys, batch)
        return [self.contrast(queries[a], keys[b][:, None], negatives) for a, b in pairs(len(batch.views))]
