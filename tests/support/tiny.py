"""Tiny data, a tiny encoder, and the context of an evaluation."""

import io
import itertools
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from cl import config
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.evaluations import Context, Encoder
from cl.features.extraction import Pixels
from cl.runtime import machine
from cl.shards import writing
from cl.shards.manifest import Manifest
from cl.sources import Scenes, Splits, Storage
from cl.training.checkpoints import Checkpoints

SCENES = Scenes(classes=["grass", "coins"], train=10, val=4, size=96, side=(32, 48), objects=(1, 3))


def write_shards(
    splits: Splits, folder: Path, shard_images: int, *, workers: int = 1, **changes: object
) -> Manifest:
    """Write shards that copy the images' files, with changes to these settings."""
    usual = {"encode": "copy", "shrink": None, "quality": 90, "verify": True, "upright": False}
    storage = Storage(**{"shard_images": shard_images, **usual, **changes})  # type: ignore[arg-type]
    return writing.write(splits, "test", storage, folder, lambda done, kept=False: None, workers=workers)


class TinyBackbone(nn.Module):
    """A convolution with batch norm and a pooled linear layer: the least that a backbone must provide."""

    fc_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


def evaluated(
    train: Reader, val: Reader, params: config.Params, backbone: nn.Module, out: Path, **changes: object
) -> Context:
    """The context of an evaluation, with changes; each training has its own folder of checkpoints."""
    number = itertools.count()
    about_encoder = {"representations": {"pixels": Pixels()}}
    about_encoder |= {key: changes.pop(key) for key in list(changes) if key in Encoder.__dataclass_fields__}
    usual = {
        "source": params.dataset,
        "seed": 0,
        "machine": machine.Machine(torch.device("cpu"), 0, "fp32"),
        "progress": Progress("test", Console(file=io.StringIO())),
        "checkpoints": lambda part: Checkpoints(out / "checkpoints" / f"{next(number)}-{part}"),
    }
    encoder = Encoder(backbone.eval(), **about_encoder)  # type: ignore[arg-type]
    return Context(encoder=encoder, train=train, val=val, out=out, **{**usual, **changes})  # type: ignore[arg-type]
