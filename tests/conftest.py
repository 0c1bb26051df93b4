"""What the tests share: tiny data, a tiny encoder, the shipped configuration."""

import io
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from cl import config, machine, prepare
from cl.checkpoint import Checkpoints
from cl.detection import scenes
from cl.evaluations import Context
from cl.features import Pixels
from cl.manifest import Manifest
from cl.progress import Progress
from cl.shards import Reader
from cl.sources import Scenes, Splits, Storage, photos

ROOT = Path(__file__).parent.parent
SCENES = Scenes(classes=["grass", "coins"], train=10, val=4, size=96, side=(32, 48), objects=(1, 3))
TINY = ["dataset.train_patches=6", "dataset.val_patches=3", "dataset.shard_images=50", "optim.batch_size=32", "optim.epochs=2"]


def compose(tmp_path: Path, *overrides: str) -> dict:
    """The parameters that `-S` with these overrides gives."""
    from pipeline.compose import compose as write

    write(tmp_path / "params.yaml", list(overrides))
    return config.read(tmp_path / "params.yaml")


def write_shards(splits: Splits, folder: Path, shard_images: int, *, workers: int = 1, **changes: object) -> Manifest:
    """Shards of images as they are, but for the changes."""
    usual = {"encode": "copy", "shrink": None, "quality": 90, "verify": True, "upright": False}
    storage = Storage(**{"shard_images": shard_images, **usual, **changes})  # type: ignore[arg-type]
    return prepare.write(splits, "test", storage, folder, lambda done, kept=False: None, workers=workers)


@pytest.fixture(scope="session")
def params(tmp_path_factory: pytest.TempPathFactory) -> config.Params:
    """The default experiment at a tiny size."""
    return config.check(compose(tmp_path_factory.mktemp("params"), *TINY))


@pytest.fixture(scope="session")
def shard_folder(tmp_path_factory: pytest.TempPathFactory, params: config.Params) -> Path:
    """Shards of the tiny embedded data set: 120 training and 60 validation images."""
    folder = tmp_path_factory.mktemp("shards")
    splits = photos.splits(params.dataset, folder / "raw")
    write_shards(splits, folder / "shards", params.dataset.shard_images)
    return folder / "shards"


@pytest.fixture
def here() -> machine.Machine:
    return machine.Machine(torch.device("cpu"), 0, "fp32")


@pytest.fixture
def quiet() -> Progress:
    return Progress("test", Console(file=io.StringIO()))


class TinyBackbone(nn.Module):
    """A convolution with batch norm and a pooled linear layer; what a backbone must offer, and nothing more."""

    fc_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


@pytest.fixture
def tiny_backbone() -> TinyBackbone:
    torch.manual_seed(0)
    return TinyBackbone()


def evaluated(train: Reader, val: Reader, params: config.Params, backbone: nn.Module, out: Path, **changes: object) -> Context:
    """What an evaluation of this backbone is given; each training saves itself in a folder of its own."""
    number = itertools.count()
    usual = {
        "heads": {},
        "representations": {"pixels": Pixels()},
        "untrained": False,
        "source": params.dataset,
        "seed": 0,
        "machine": machine.Machine(torch.device("cpu"), 0, "fp32"),
        "progress": Progress("test", Console(file=io.StringIO())),
        "checkpoints": lambda part: Checkpoints(out / "checkpoints" / f"{next(number)}-{part}"),
    }
    return Context(backbone=backbone.eval(), train=train, val=val, out=out, **{**usual, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the working tree, committed, at the smallest sizes."""
    folder = tmp_path_factory.mktemp("clone") / "project"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file() and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Detection scenes with objects of two classes: 10 to train and 4 to test."""
    folder = tmp_path_factory.mktemp("scenes")
    scenes.write(SCENES, folder)
    return folder
