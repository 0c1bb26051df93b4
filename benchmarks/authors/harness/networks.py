"""Networks for sources of which only the loss, the queue or the optimizer is run."""

from itertools import pairwise

from torch import nn
from torchvision.models import resnet18


def backbone() -> nn.Module:
    """A ResNet-18 without its classifier."""
    network = resnet18()
    network.fc = nn.Identity()
    return network


def mlp(*widths: int, last_bias: bool = True) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:], bias=last_bias))


class Encoder(nn.Module):
    """A backbone with a projector, and a predictor if its widths are given."""

    def __init__(self, projector: nn.Module, predictor: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone, self.projector, self.predictor = backbone(), projector, predictor

    def forward(self, images):
        return self.projector(self.backbone(images))
