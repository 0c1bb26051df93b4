"""ResNets as other libraries build them, and images to compare their features on."""

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def torchvision_network(build=resnet18) -> nn.Module:  # type: ignore[no-untyped-def]
    """Random weights and statistics, so that no two tensors are equal."""
    torch.manual_seed(0)
    network = build()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5), nn.init.normal_(module.bias)
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 1.5)
    return network.eval()


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
