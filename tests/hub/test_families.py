"""Every family of timm's networks loads again: our files, our exports, and timm's own folders."""

import json
import sys

import pytest
import timm
import torch
from timm.models import save_for_hf

import cl
from cl.data.transform import Transform
from cl.hub import export
from cl.networks import backbones
from cl.networks.backbones.timm import Config
from cl.runtime.tensor_files import save_tensors
from tests.support.transformers import randomised

# Small networks of families whose first tensor is called like others inside blocks; and timm's smallest.
REPEATED = ("seresnet18", "hrnet_w18_small")
UNPOOLED = {"deepseek_vit", "gemma4_vit", "mobilenetv5", "qwen3_vit"}  # encoders of language models


def smallest() -> list[str]:
    """Of each module of timm, the network with the shortest side of images and then the fewest parameters."""
    found: dict[str, tuple[int, int, str]] = {}
    for name in timm.list_models():
        family = timm.models._registry._model_to_module[name]
        with torch.device("meta"):
            network = timm.create_model(name)
        size = sum(parameter.numel() for parameter in network.parameters())
        found[family] = min(found.get(family, (sys.maxsize, 0, "")), (size, 0, name))
    return [name for family, (*_, name) in found.items() if family not in UNPOOLED]


def check_round_trips(name: str, folder) -> None:
    """Written by `pretrain`, by `pipeline.export timm` and by timm; all give the features of the network."""
    size = timm.get_pretrained_cfg(name).input_size[-1]
    config = Config(kind="timm", name=name, size=size, pool=None, drop_path=0, checkpointing=False)
    network = backbones.build(config).eval()
    transform = Transform(resize=size, crop=size, mean=(0.5,) * 3, std=(0.5,) * 3, upright=True)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(images)
    metadata = {
        "parameters": json.dumps({"backbone": config.model_dump()}),
        "transform": transform.model_dump_json(),
    }
    save_tensors(network.state_dict(), folder / "models/backbone.safetensors", metadata)
    description = export.describe(config, network.fc_features, transform)
    export.write_folder(network, folder / "ours", description, "", {})
    theirs = timm.create_model(f"local-dir:{folder}/ours", pretrained=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), expected)
    save_for_hf(theirs, str(folder / "theirs"), safe_serialization=True)
    for file in ("models/backbone", "ours/model", "theirs/model"):
        found = cl.load(folder / f"{file}.safetensors")
        torch.testing.assert_close(
            found.embed(images), expected, rtol=1e-4, atol=1e-4, msg=lambda m: f"{name} {file} {m}"
        )
