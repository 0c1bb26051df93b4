"""Vision transformers as timm builds them, and their tensors as the programs of other papers save them."""

import argparse
from typing import Any, TypeVar

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from cl.networks.backbones import vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
State = dict[str, Tensor]
Network = TypeVar("Network", bound=nn.Module)


def transformer(**options: Any) -> VisionTransformer:
    """Two blocks, 128 wide with 2 heads, for images of 32 px in patches of 8; no two tensors are equal."""
    usual = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 0}
    return randomised(VisionTransformer(**(usual | options)))  # type: ignore[arg-type]


def randomised(network: Network) -> Network:
    """Random weights, so that nothing can be left out unnoticed."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.2)
    return network.eval()


def below(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def other(state: State) -> State:
    return {name: torch.zeros_like(value) for name, value in state.items()}


def timm(state: State) -> dict[str, Any]:
    return {"state_dict": state | {"head.weight": torch.ones(5, 128), "head.bias": torch.ones(5)}}


def dino(state: State) -> dict[str, Any]:
    """main_dino.py: both networks, the arguments, and an optimizer whose schedule NumPy computed."""
    head = {"head.mlp.0.weight": torch.ones(4, 128), "head.last_layer.weight_g": torch.ones(4, 1)}
    teacher = below("backbone.", state) | head
    return {
        "student": below("module.", below("backbone.", other(state)) | head),
        "teacher": teacher,
        "optimizer": {"state": {}, "param_groups": [{"lr": np.float64(0.1)}]},
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small", patch_size=8),
        "dino_loss": {"center": torch.zeros(1, 4)},
    }


def chunked(state: State) -> State:
    """DINOv2 in training: a chunk for each block, blocks numbered through."""
    return {
        name.replace("blocks.1.", "blocks.1.1.").replace("blocks.0.", "blocks.0.0."): state[name]
        for name in state
    }


def dinov2(state: State) -> State:
    return state | {"mask_token": torch.ones(1, 128)}


def dinov2_teacher(state: State) -> dict[str, Any]:
    heads = {"dino_head.mlp.0.weight": torch.ones(4, 128), "ibot_head.mlp.0.weight": torch.ones(4, 128)}
    return {"teacher": below("backbone.", chunked(dinov2(state))) | heads}


def moco_v3(state: State) -> dict[str, Any]:
    head = {"head.0.weight": torch.ones(4, 128), "head.1.running_mean": torch.ones(4)}
    online = below("module.base_encoder.", state | head)
    target = below("module.momentum_encoder.", other(state) | head)
    predictor = {"module.predictor.0.weight": torch.ones(4, 4)}
    return {"epoch": 300, "arch": "vit_small", "state_dict": online | target | predictor}


def mae(state: State) -> dict[str, Any]:
    """models_mae.py: the decoder has blocks, positions and a norm of its own."""
    decoder = {"mask_token": torch.ones(1, 1, 64), "decoder_pos_embed": torch.ones(1, 17, 64)}
    decoder |= {f"decoder_blocks.0.{part}.weight": torch.ones(64, 64) for part in ("attn.qkv", "mlp.fc1")}
    decoder |= {f"decoder_{part}.weight": torch.ones(64, 64) for part in ("embed", "norm", "pred")}
    return {"model": state | decoder, "args": argparse.Namespace(model="mae_vit_base_patch16")}


def with_sines(network: VisionTransformer) -> VisionTransformer:
    """With the positions of MoCo v3."""
    positions = network.pos_embed
    assert positions is not None
    _, count, width = positions.shape
    with torch.no_grad():
        positions[0] = torch.cat([torch.zeros(1, width), vit.sines(round((count - 1) ** 0.5), width)])
    return network
