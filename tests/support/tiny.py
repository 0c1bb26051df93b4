"""Tiny data, a tiny encoder, and the context of an evaluation."""

import io
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import nn

from cl import config
from cl.console.progress import Progress
from cl.data.reader import Reader
from cl.evaluations import EvaluatedEncoder, EvaluationContext
from cl.features.extraction import Pixels
from cl.images.folders import images_below
from cl.images.image import Splits
from cl.images.listing import Listing
from cl.runtime import machine
from cl.shards import writing
from cl.shards.manifest import Manifest
from cl.shards.survey import Team
from cl.sources import Scenes, Storage
from cl.training.checkpoints import Checkpoints
from pipeline.support.locations import transform
from tests.support.pictures import file_of, photograph

SCENES = Scenes(classes=["grass", "coins"], train=10, val=4, size=96, side=(32, 48))
# How tests store images, unless they say otherwise.
STORAGE = {
    "encode": "copy",
    "shrink": None,
    "quality": 90,
    "verify": True,
    "upright": False,
    "percentiles": (0.1, 99.9),
    "tile": None,
    "deduplicate": False,
    "store": None,
}


def write_shards(
    splits: Splits, folder: Path, shard_images: int, *, workers: int = 1, **changes: object
) -> Manifest:
    """Write shards that copy the images' files, with changes to these settings."""
    storage = Storage(**{"shard_images": shard_images, **STORAGE, **changes})  # type: ignore[arg-type]
    manifest = writing.write(splits, "photos", storage, folder, Team(workers))
    assert manifest
    return manifest


def stored(
    folder: Path, files: dict[str, bytes], val: dict[str, bytes] | None = None, **changes: object
) -> Reader:
    """Write training images, or validation images too, into files and shards; the training split."""
    listed = {}
    for split, contents in (("train", files), ("val", val or {"any.jpg": file_of(photograph())})):
        for name, content in contents.items():
            path = folder / "raw" / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        listed[split] = listing_of(folder / "raw" / split)
    write_shards(Splits([], **listed), folder / "shards", 4, **changes)
    return Reader(folder / "shards", "train")


def listing_of(root: Path) -> Listing:
    """The images below a folder, without labels."""
    listed = Listing(root)
    for name, status in images_below(root, "", Counter()):
        listed.add(name, status)
    return listed


def pixels_by_key(reader: Reader) -> dict[str, np.ndarray]:
    """All images of a split."""
    return {key.decode(): reader.pixels(position) for position, key in enumerate(reader.keys)}


class TinyBackbone(nn.Module):
    """A convolution with batch norm and a pooled linear layer: the least that a backbone must provide."""

    fc_features = 8

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(channels, 6, 3, stride=2), nn.BatchNorm2d(6), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


class TinyTwoStreams(nn.Module):
    """Two of them side by side: one sees the first channel, the other the other two."""

    fc_features = 2 * TinyBackbone.fc_features

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleList([TinyBackbone(1), TinyBackbone(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.networks[0](x[:, :1]), self.networks[1](x[:, 1:])], 1)


def evaluated(
    train: Reader, val: Reader, params: config.Params, backbone: nn.Module, out: Path, **changes: object
) -> EvaluationContext:
    """The context of an evaluation, with changes; each training has its own folder of checkpoints."""
    number = itertools.count()
    about_encoder = {"representations": {"pixels": Pixels()}}
    about_encoder |= {
        key: changes.pop(key) for key in list(changes) if key in EvaluatedEncoder.__dataclass_fields__
    }
    usual = {
        "transform": transform(params.dataset),
        "seed": 0,
        "machine": machine.Machine(torch.device("cpu"), 0, "fp32"),
        "progress": Progress("test", Console(file=io.StringIO())),
        "checkpoints": lambda part: Checkpoints(out / "checkpoints" / f"{next(number)}-{part}"),
    }
    encoder = EvaluatedEncoder(backbone.eval(), **about_encoder)  # type: ignore[arg-type]
    return EvaluationContext(encoder=encoder, train=train, val=val, out=out, **{**usual, **changes})  # type: ignore[arg-type]


class Colour(nn.Module):
    """An encoder that sees only the mean colour."""

    fc_features = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))
