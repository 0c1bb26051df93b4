"""ResNets as other libraries build them, and images to compare their features on."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from cl.data.transform import Transform
from cl.encoders import published
from cl.networks import backbones
from cl.runtime.tensor_files import save_tensors
from tests.support.backbones import residual

Stem = Literal["imagenet", "small"]
NARROW = 0.125  # of torchvision's width: a network then takes a fiftieth of the time
WIDTH = 64  # features of such a ResNet-18
TRANSFORM = Transform(resize=20, crop=16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), upright=False)
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def save_encoder(
    path: Path,
    seed: int = 0,
    metadata: dict[str, str] | None = None,
    stem: Stem = "imagenet",
    width: float = NARROW,
) -> dict[str, Tensor]:
    """Write a ResNet-18 as `pretrain` does, with a transform to 16 px; returns its tensors."""
    torch.manual_seed(seed)
    network = backbones.build(residual(stem=stem, width=width))
    recorded = {"transform": TRANSFORM.model_dump_json()} if metadata is None else metadata
    save_tensors(network.state_dict(), path, recorded)
    return network.state_dict()


def narrow(name: str = "resnet18") -> nn.Module:
    """torchvision's network with an eighth of its channels."""
    network: nn.Module = backbones.build(residual(name, "imagenet", width=NARROW))
    network.fc = nn.Linear(WIDTH, 10)
    return network


def torchvision_network(build: Callable[[], nn.Module] = narrow) -> nn.Module:
    """Random weights and statistics, so that no two tensors are equal."""
    torch.manual_seed(0)
    network = build()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5), nn.init.normal_(module.bias)
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 1.5)
    return network.eval()


def put_torchvision_weights(network: nn.Module, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `torchvision:<network>` mean this network, downloaded to the folder before."""
    torch.save(network.state_dict(), folder / "weights")
    name = f"network-{hashlib.sha256((folder / 'weights').read_bytes()).hexdigest()[:8]}.pth"
    (folder / "weights").rename(folder / name)
    monkeypatch.setattr(published, "torchvision_url", lambda _: f"https://example.org/{name}")


def features(network: nn.Module, images: Tensor = IMAGES) -> Tensor:
    """The input of the classifier in a torchvision network."""
    with torch.no_grad():
        return nn.Sequential(*list(network.children())[:-1])(images).flatten(1)


def detectron2_network(path: Path, kind: str = "resnet18") -> nn.Module:
    """detectron2's own ResNet with the file as MODEL.WEIGHTS; returns its last features, pooled."""
    from detectron2.checkpoint import DetectionCheckpointer
    from detectron2.config import get_cfg
    from detectron2.modeling.backbone import build_resnet_backbone

    settings = get_cfg()
    usual = {"DEPTH": int(kind[6:]), "STRIDE_IN_1X1": False, "NORM": "BN", "OUT_FEATURES": ["res5"]}
    settings.MODEL.RESNETS.update(usual | ({"RES2_OUT_CHANNELS": 64} if kind == "resnet18" else {}))

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = build_resnet_backbone(settings, SimpleNamespace(channels=3))

        def forward(self, images: Tensor) -> Tensor:
            return self.network(images)["res5"].mean((2, 3))

    pooled = Pooled().eval()
    DetectionCheckpointer(pooled.network).load(str(path))
    return pooled
