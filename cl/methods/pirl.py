"""PIRL: an image and the shuffled patches of its jigsaw are contrasted with the same memory."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from cl.methods import Setup
from cl.methods._shared.memory_bank import BankConfig, MemoryBankMethod
from cl.networks import heads
from cl.networks.passes import image_major, l2_normalize
from cl.objective.batch import Batch
from cl.objective.terms import Contrast

PATCHES = 9


class Config(BankConfig):
    """Misra and van der Maaten 2020: NCE, or InfoNCE, the later form with a softmax.

    patch_weight: lambda, the weight of the patches' term; the image's term has 1 - lambda. `scale`: the total
        is the mean over the two terms, so 2 gives the paper's sum.
    """

    least_views: ClassVar[int] = 1 + PATCHES
    jigsaw: ClassVar[int] = PATCHES
    kind: Literal["pirl"]
    patch_weight: float = Field(ge=0, le=1)

    def large_views(self, views: int) -> int:
        """The image."""
        return 1


class Method(MemoryBankMethod):
    """Both embeddings are compared with the image's row of the bank, and with the same other rows."""

    def __init__(self, config: Config, setup: Setup) -> None:
        super().__init__(config, setup)
        self.weights = config.patch_weight, 1 - config.patch_weight
        width = config.projector.out
        self.patch_projector = heads.build(config.projector, self.backbone.fc_features)
        self.jigsaw = nn.Linear(PATCHES * width, width)

    def forward(self, batch: Batch) -> list[Contrast]:
        """A contrast of N jigsaws with the bank, and one of the N images, whose embeddings update it."""
        image, *patches = batch.views
        queries = [self._embed_patches(patches), self.embed(image)]  # (N, D) each
        self.remember(queries[1], batch)
        contrasts = self.against_bank(queries, batch)
        return [replace(c, weight=weight) for c, weight in zip(contrasts, self.weights, strict=True)]

    def _embed_patches(self, patches: list[Tensor]) -> Tensor:
        """(N, D) unit rows: `jigsaw` sees the embeddings of an image's patches, in random order."""
        encoded = self.patch_projector(self.backbone(image_major(patches)))  # (N PATCHES, D)
        return l2_normalize(self.jigsaw(encoded.unflatten(0, (-1, PATCHES)).flatten(1)))
