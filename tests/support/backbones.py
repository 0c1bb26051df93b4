"""Tiny backbones of the kinds vit and timm."""

from typing import Any

from cl.networks.backbones import BackboneConfig
from cl.runtime.registry import module_of

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


def config(name: str, **changes: Any) -> BackboneConfig:
    """The configuration of one of them."""
    values = (PLAIN | HIERARCHICAL)[name] | changes
    found: BackboneConfig = module_of("networks.backbones", values["kind"]).Config(**values)
    return found
