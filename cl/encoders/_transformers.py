"""Vision transformers recognised by their tensors, with the names of timm, DINO, DINOv2, MoCo v3 and MAE.

All five have one architecture and timm's names, except for the differences below. Sources:
vision_transformer.py of facebookresearch/dino and dinov2, vits.py of moco-v3, and models_mae.py and
models_vit.py of mae.
"""

import math
import re
from typing import Any, Literal

import torch
from torch import Tensor

from cl.encoders._checkpoints import OTHER_NETWORKS, Converted
from cl.networks.backbones import BackboneConfig, timm, vit
from cl.runtime.tensor_files import below

# DINOv2 trains blocks in chunks. Their names have two numbers; the second counts through all chunks.
CHUNK = re.compile(r"^blocks\.\d+\.(?=\d+\.)")
# Heads, the token that replaces masked patches (DINOv2, MAE, iBOT), and MAE's decoder.
LEFT_OUT = re.compile(r"head\.|mask_token$|masked_embed$|decoder_")
MOCO_V3 = ("module.base_encoder.", "module.momentum_encoder.")
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}  # by width; others have a head per 64 features
SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}  # timm's names by width
LAYER_SCALE = 1e-5  # DINOv2's initial value, which the tensors replace


def converted(tensors: dict[str, Tensor], prefix: str, metadata: dict[str, str], file: str) -> Converted:
    """The vision transformer below a prefix.

    Unless the metadata say otherwise, its features are the class token after the last norm, as in the papers'
    evaluations, or the average over patches if the norm follows pooling (fine-tuned MAE). All weights can be
    trained further, including positions and the projection of patches. The tensors do not show `heads` and
    `pool`, which the metadata may have.
    """
    named = _rename(below(tensors, prefix))
    if other := _difference(named):
        raise ValueError(
            f"{file} holds a vision transformer {other}; expected one of timm, DINO, DINOv2, MoCo v3 or "
            "MAE; if timm publishes it, give timm:<name>, or put timm's config.json beside timm's file"
        )
    width = named["cls_token"].shape[-1]
    # The usual number of heads: 12 up to ViT-B in MoCo v3, otherwise one per 64 features.
    is_moco = prefix in MOCO_V3 or _has_sines(named, rows_first=True)
    usual = 12 if width <= 768 and is_moco else HEADS.get(width, max(1, width // 64))
    heads = int(metadata.get("heads", usual))
    deviations: tuple[str, ...] = ()
    doubt = ""
    if "heads" not in metadata and heads < 12 and _has_sines(named, rows_first=False):
        deviations = ("perhaps with 12 heads",)
        doubt = (
            f"{file} has the positions of MAE, and does not show whether it has {heads} heads, as most do, "
            'or 12, as solo-learn\'s do; write {"model_args": {"num_heads": 12}} '
            f"or {heads} to config.json beside it"
        )
    pool: Any = metadata.get("pool", "cls")
    return Converted(_config(named, heads, pool, file), named, deviations, doubt)


def _rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """An encoder's tensors with timm's names, without heads and decoder."""
    named = {
        CHUNK.sub("blocks.", name): tensor for name, tensor in tensors.items() if not LEFT_OUT.match(name)
    }
    if "register_tokens" in named:
        named["reg_token"] = named.pop("register_tokens")
    if {"cls_token", "pos_embed"} <= named.keys():
        named |= _positions(named["cls_token"], named["pos_embed"], registers="reg_token" in named)
    return named


def _positions(token: Tensor, positions: Tensor, *, registers: bool) -> dict[str, Tensor]:
    """The class token and the positions that timm expects: the token has a position only without registers.

    DINOv2's token always has a position; with registers, it is added to the token. DeiT III's has none and
    gets a position of 0. The token is (1, 1, D), the positions (1, P, D) for P patches, or (1, 1 + P, D) with
    the class token first.
    """
    of_patches_alone = _is_square(positions.shape[1])
    if registers and not of_patches_alone:
        return {"cls_token": token + positions[:, :1], "pos_embed": positions[:, 1:]}
    if not registers and of_patches_alone:
        return {"pos_embed": torch.cat([torch.zeros_like(token), positions], 1)}
    return {}


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


def _patches(tensors: dict[str, Tensor]) -> int:
    """The number of patches that positions are stored for."""
    return tensors["pos_embed"].shape[1] - ("reg_token" not in tensors)


def _difference(tensors: dict[str, Tensor]) -> str:
    """How it differs from the known architectures; empty if it does not."""
    projection = tensors.get("patch_embed.proj.weight")
    if projection is None or projection.ndim != 4:
        return "whose patches are not projected by one convolution"
    if not {"cls_token", "pos_embed"} <= tensors.keys():
        return "without a class token and positions"
    if "blocks.0.mlp.w12.weight" in tensors:
        return "with SwiGLU, like DINOv2's ViT-g"
    if "dist_token" in tensors:
        return "with a distillation token, like DeiT's"
    if not _is_square(_patches(tensors)) or projection.shape[2] != projection.shape[3]:
        return "for images that are not square"
    return ""


def _has_sines(tensors: dict[str, Tensor], *, rows_first: bool) -> bool:
    """Whether positions are sines of the rows, then of the columns (MoCo v3), or the reverse (MAE)."""
    positions = tensors["pos_embed"][0, -_patches(tensors) :]
    count, width = positions.shape
    if width % 4:
        return False
    sines = vit.sines(math.isqrt(count), width).roll(0 if rows_first else width // 2, 1)
    return torch.allclose(positions.float(), sines, atol=1e-3)


def _config(
    tensors: dict[str, Tensor], heads: int, pool: Literal["cls", "average"], file: str
) -> BackboneConfig:
    width, channels, patch, _ = tensors["patch_embed.proj.weight"].shape
    size = math.isqrt(_patches(tensors)) * patch
    if "fc_norm.weight" in tensors and "norm.weight" not in tensors:
        from timm import is_model  # late: it takes seconds to import

        usual = {known: HEADS.get(known, known // 64) for known in SIZES}
        name = f"vit_{SIZES.get(width)}_patch{patch}_224"
        if usual.get(width) != heads or not is_model(name):
            expected = ", ".join(f"{known} with {number}" for known, number in usual.items())
            raise ValueError(
                f"{file} has a fine-tuned vision transformer of width {width} with {heads} heads and patches "
                f"of {patch} px, expected {expected}, and patches of a size that timm names; {OTHER_NETWORKS}"
            )
        return timm.Config(
            kind="timm",
            name=name,
            size=size,
            pool="average",
            drop_path=0,
            checkpointing=False,
            channels=channels,
        )
    if width % heads:
        raise ValueError(
            f"{file} holds a vision transformer of width {width}, which {heads} heads do not divide; "
            'give their number in a config.json beside the file: {"model_args": {"num_heads": N}}'
        )
    return vit.Config(
        kind="vit",
        channels=channels,
        size=size,
        patch=patch,
        width=width,
        depth=len({name.split(".")[1] for name in tensors if name.startswith("blocks.")}),
        heads=heads,
        positions="learned",
        frozen_patches=False,
        pool=pool,
        layer_scale=LAYER_SCALE if "blocks.0.ls1.gamma" in tensors else None,
        registers=tensors["reg_token"].shape[1] if "reg_token" in tensors else 0,
        drop_path=0,
        checkpointing=False,
    )
