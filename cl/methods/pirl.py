"""PIRL: an image and the shuffled patches of its jigsaw are contrasted with the same memory."""

from dataclasses import replace
from typing import ClassVar, Literal

from torch import Tensor, nn

from cl.methods import Setup
from cl.methods._shared.memory_bank import BankConfig, MemoryBankMethod
from cl.networks import heads
from cl.networks.passes import image_major, l2_normalize
from cl.objective.batch import Batch
from cl.objective.terms import Contrast

PATCHES = 9
WEIGHT = 0.5  # of each term: lambda and 1 - lambda in the paper


class Config(BankConfig):
    """Misra and van der Maaten 2020: NCE, or InfoNCE, the later form with a softmax.

    `scale`: the total is the mean over the two terms, so 2 gives the paper's sum.
    """

    least_views: ClassVar = 1 + PATCHES
    large: ClassVar = 1  # the image
    jigsaw: ClassVar = PATCHES
    kind: Literal["pirl"]


class Method(MemoryBankMethod):
    """Both embeddings are compared with the image's row of the bank, and with the same other rows."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        width = config.projector.out
        self.patch_projector = heads.build(config.projector, self.backbone.fc_features)
        self.jigsaw = nn.Linear(PATCHES * width, width)

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N jigsaws with the bank, and one of the N images, whose embeddings update it."""
        image, *patches = batch.views
        queries = [self._embed_patches(patches), self.embed(image)]  # (N, D) each
        self.remember(queries[1], batch)
        return [replace(contrast, weight=WEIGHT) for contrast in self.against_bank(queries, batch)]

    def _embed_patches(self, patches: list[Tensor]) -> Tensor:
        """(N, D) unit rows: `jigsaw` sees the embeddings of an image's patches, in random order."""
        encoded = self.patch_projector(self.backbone(image_major(patches)))  # (N PATCHES, D)
        return l2_normalize(self.jigsaw(encoded.unflatten(0, (-1, PATCHES)).flatten(1)))
