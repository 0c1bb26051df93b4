"""Train image encoders without labels, and use them.

An encoder from a file:
    load(file)           with `transform`, `embed` and `patches`; an `nn.Module`

Losses, called as `loss(z0, z1)` with two or more views (N, D); docs/losses.md:
    InfoNCELoss          SimCLR's NT-Xent and MoCo's loss; with labels, SupCon
    EqCoLoss             InfoNCE as if there were `alpha` negatives
    DCLLoss              without the positive in the denominator
    DCLWLoss             and with less weight on positives that agree
    JCLLoss              infinitely many positives, from three views or more
    DebiasedLoss         corrected for negatives of the query's class
    SigmoidLoss          each pair classified by itself
    InvariantSpreadLoss  recognises the positive, rejects each negative
    CosineLoss           BYOL's and SimSiam's, without negatives
    BarlowTwinsLoss      the views' correlation becomes the identity
    VICRegLoss           equal views with spread and without correlation

Functions of the commands `cl NAME`, each with the same arguments:
    advise               whether to train an encoder on your images, from which start, with which command
    classify             classes of images, from a few labels
    compare              whether one encoder is better than another, image by image
    duplicates           groups of images that are copies of each other
    embed                features of images, in memory or as a file
    evaluate             how well an encoder separates labelled images
    export               an encoder in the format of another program
    search               the images most similar to others

How good features are, in percent:
    knn_accuracy         nearest neighbours vote
    linear_probe         multinomial logistic regression

`import cl` is fast: each name imports what it needs when it is first used.
"""

import importlib
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from cl.commands.advise import advise
    from cl.commands.classify import classify
    from cl.commands.compare import compare
    from cl.commands.duplicates import duplicates
    from cl.commands.embed import embed
    from cl.commands.evaluate import evaluate
    from cl.commands.export import export
    from cl.commands.search import search
    from cl.encoders.encoder import Encoder
    from cl.features.scores import knn_accuracy, linear_probe
    from cl.loss_modules import (
        BarlowTwinsLoss,
        CosineLoss,
        DCLLoss,
        DCLWLoss,
        DebiasedLoss,
        EqCoLoss,
        InfoNCELoss,
        InvariantSpreadLoss,
        JCLLoss,
        SigmoidLoss,
        VICRegLoss,
    )

    __version__: str

# The modules of the names that are neither losses nor commands.
_MODULES = {"knn_accuracy": "cl.features.scores", "linear_probe": "cl.features.scores"}
__all__ = [
    "BarlowTwinsLoss", "CosineLoss", "DCLLoss", "DCLWLoss", "DebiasedLoss", "EqCoLoss", "InfoNCELoss",
    "InvariantSpreadLoss", "JCLLoss", "SigmoidLoss", "VICRegLoss", "advise", "classify", "compare",
    "duplicates", "embed", "evaluate", "export", "knn_accuracy", "linear_probe", "load", "search",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata  # late: it takes longer than the rest of this module

        return metadata.version("cl")
    if name not in __all__:
        raise AttributeError(f"module 'cl' has no attribute '{name}'")
    usual = "cl.loss_modules" if name.endswith("Loss") else f"cl.commands.{name}"
    value = getattr(importlib.import_module(_MODULES.get(name, usual)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def load(
    file: "str | PathLike[str]",
    *,
    device: "str | torch.device | None" = None,
    prefix: str | None = None,
) -> "Encoder":
    """A trained encoder in eval mode, with `transform`, `width` and `embed`.

    Files of other programs record no transform; their encoders get ImageNet's: short side 256, crop 224, and
    the mean and standard deviation in timm's config.json, if that is beside the file.
    `encoder.transform = encoder.transform.model_copy(update={"resize": 512, "crop": 448})` changes it.

    Args:
        file: models/backbone.safetensors, a file of `cl export`, a ResNet of torchvision, timm, MoCo,
            MoCo v3, SimSiam, SwAV, lightly or solo-learn, a vision transformer of timm, DINO, DINOv2, MoCo v3
            or MAE, weights with timm's config.json beside them, or a name such as `torchvision:resnet50` or
            `timm:convnext_tiny.fb_in1k`.
        device: where the encoder computes; default: the CPU.
        prefix: the prefix of its tensor names, if the file holds several encoders.

    Raises:
        ValueError: the file is missing or damaged, or does not hold exactly one network of a known
            architecture with finite weights.
    """
    from cl.encoders import encoder  # late: torch takes seconds to import

    return encoder.load(fspath(file), prefix).to(device or "cpu")
