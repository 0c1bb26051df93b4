"""PIRL: an image and the shuffled patches of its jigsaw have the same memory."""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from cl.methods import Setup
from cl.methods._shared.memory_bank import BankConfig, MemoryBankMethod
from cl.networks import heads
from cl.networks.passes import image_major, in_microbatches, l2_normalize
from cl.objective.batch import Batch
from cl.objective.terms import Contrast

if TYPE_CHECKING:
    from cl.config import Params

PATCHES = 9


class Config(BankConfig):
    """Misra and van der Maaten 2020: loss=nce; loss=infonce is the later form, a softmax.

    patch_weight: lambda, of the patches' term; the image's has 1 - lambda. `scale`: 2 gives the paper's sum,
        because the total is the mean over the two terms.
    """

    least_views: ClassVar[int] = 1 + PATCHES
    kind: Literal["pirl"]
    patch_weight: float = Field(ge=0, le=1)

    def large_views(self, views: int) -> int:
        """The image."""
        return 1

    def check(self, params: "Params") -> None:
        """The views are an image and then the patches of one jigsaw."""
        super().check(params)
        kinds = list(params.views.values())
        found = [(view.count, view.jigsaw is not None) for view in kinds]
        if found != [(1, False), (PATCHES, True)]:
            names = ", ".join(f"{view.count} x {name}" for name, view in params.views.items())
            raise ValueError(
                f"method=pirl takes one view of the image, then the {PATCHES} patches of a jigsaw, found "
                f"{names}; choose views=pirl or views=pirl_small"
            )


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
        encoded = in_microbatches(
            lambda part: self.patch_projector(self.backbone(part)), image_major(patches), self.microbatches
        )
        return l2_normalize(
            self.jigsaw(encoded.unflatten(0, (-1, PATCHES)).flatten(1))
        )  # (N, PATCHES D) to (N, D)
