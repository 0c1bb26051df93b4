"""Residual networks, tiny backbones of the kinds vit and timm, and those of `pipeline/conf` at their size."""

from typing import Any

import torch
from omegaconf import OmegaConf

from cl.config import read
from cl.networks import backbones
from cl.networks.backbones import Backbone, BackboneConfig, resnet
from cl.runtime.registry import module_of
from tests.support.project import ROOT

FOLDER = ROOT / "pipeline/conf/backbone"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.yaml"))
DATASET = {"crop": 224, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

VIT: dict[str, Any] = {
    "size": 64,
    "patch": 8,
    "width": 16,
    "depth": 3,
    "heads": 2,
    "positions": "sincos",
    "frozen_patches": True,
    "pool": "cls",
    "layer_scale": None,
    "registers": 0,
    "drop_path": 0.0,
    "checkpointing": False,
}
TIMM: dict[str, Any] = {"size": 64, "pool": None, "drop_path": 0.0, "checkpointing": False}
PLAIN = {
    "vit": {"kind": "vit", **VIT, "pool": "average", "registers": 2},
    "test_vit": {"kind": "timm", **TIMM, "name": "test_vit"},
}
HIERARCHICAL = {
    name: {"kind": "timm", **TIMM, "name": name}
    for name in (
        "test_convnext",
        "test_efficientnet",
        "test_resnet",
        "regnetx_002",
        "swin_tiny_patch4_window7_224",
    )
}


def residual(name: str = "resnet18", stem: str = "small", **changes: Any) -> resnet.Config:
    """A residual network as wide as torchvision's; the small stem is for small images."""
    usual: dict[str, Any] = {"kind": "resnet", "width": 1, "zero_init_residual": False}
    return resnet.Config(**usual | {"name": name, "stem": stem} | changes)


def config(name: str, **changes: Any) -> BackboneConfig:
    """The configuration of one of them."""
    values = (PLAIN | HIERARCHICAL)[name] | changes
    found: BackboneConfig = module_of("networks.backbones", values["kind"]).Config(**values)
    return found


def build(name: str, **changes: Any) -> Backbone:
    """One of them, with the same weights each time."""
    torch.manual_seed(0)
    return backbones.build(config(name, **changes))


def shipped(name: str) -> BackboneConfig:
    """What `-S backbone=<name>` chooses; composing all parameters takes seconds."""
    resolved = OmegaConf.create({"dataset": DATASET, "backbone": _settings(name)})
    values: Any = OmegaConf.to_container(resolved, resolve=True)
    found: BackboneConfig = module_of("networks.backbones", values["backbone"]["kind"]).Config(
        **values["backbone"]
    )
    return found


def _settings(name: str) -> dict[str, Any]:
    """Those of a file, on top of those of the file that it builds on."""
    values = read(FOLDER / f"{name}.yaml")
    defaults = values.pop("defaults", ["_self_"])
    return (
        _settings(defaults[0]) if isinstance(defaults[0], str) and defaults[0] in SHIPPED else {}
    ) | values
