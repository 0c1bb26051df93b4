"""Tiny backbones of today: one of each family."""

from typing import Any

from cl.networks.backbones import BackboneConfig
from cl.runtime.kinds import module_of

TIMM = {"kind": "timm", "size": 64, "pool": None, "drop_path": 0.0, "checkpointing": False}
VIT = {
    "kind": "vit",
    "size": 64,
    "patch": 8,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "positions": "sincos",
    "frozen_patches": True,
    "pool": "average",
    "layer_scale": None,
    "registers": 2,
    "drop_path": 0.0,
    "checkpointing": False,
}
PLAIN: dict[str, dict[str, Any]] = {"vit": VIT, "test_vit": TIMM | {"name": "test_vit"}}
HIERARCHICAL: dict[str, dict[str, Any]] = {
    name: TIMM | {"name": name}
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
