"""Networks named by metadata: our own records, and descriptions in timm's format."""

import inspect
import json
from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import ValidationError

from cl.networks.backbones import RGB, BackboneConfig
from cl.networks.backbones import timm as timm_backbone
from cl.networks.backbones.resnet import BLOCKS
from cl.runtime.registry import kinds, module_of
from cl.runtime.tensor_files import json_object

POOLS: dict[str, Literal["cls", "average"]] = {"token": "cls", "avg": "average"}  # timm's names and ours
RECORDS = ("network", "parameters", "parent")  # metadata of our files that are JSON objects
# Arguments of timm.create_model that our configuration can hold, or that do not change a trained encoder.
ARGUMENTS = {"img_size", "dynamic_img_size", "num_classes", "global_pool", "zero_init_last", "weight_init"}
ARGUMENTS |= {"in_chans"}
# Those of a vision transformer that its tensors show, and its heads, which metadata hold.
SHOWN = {"patch_size", "embed_dim", "depth", "init_values", "reg_tokens", "no_embed_class", "fc_norm"}
SHOWN |= {"num_heads"}
# Arguments that no tensor shows: whether a value is possible, and what it must be.
EXPECTED: dict[str, tuple[Callable[[Any], object], str]] = {
    "num_heads": (lambda value: isinstance(value, int) and value > 0, "a whole number above 0"),
    "global_pool": (lambda value: isinstance(value, str), "a name such as token or avg"),
    "stem_padding": (lambda value: value in (1, 2), "1 or 2 (pixels)"),
    "img_size": (lambda value: _side(value), "pixels such as 224"),
    "in_chans": (lambda value: isinstance(value, int) and value > 0, "a whole number above 0"),
}


def metadata(description: dict[str, Any]) -> dict[str, str]:
    """The metadata in the content of config.json in a folder of timm's, in which all keys are optional.

    heads, pool, license: as in the description.
    network: our configuration in JSON. It is missing for networks that are recognised by their tensors:
        ResNets, vision transformers with other arguments, and networks that timm does not know by this name.
    normalisation: mean and standard deviation of RGB in [0, 1], in JSON; that of the name
        if the description has no pretrained_cfg.
    stem_padding: our addition to timm's arguments, because the tensors of a ResNet do not show it.
    transformers: the kind of model, if Hugging Face's transformers wrote the description.

    Raises:
        ValueError: an argument has a wrong value, or is not supported.
    """
    arguments = _part(description, "model_args")
    recorded = _part(description, "pretrained_cfg")
    if not recorded and isinstance(description.get("mean"), list):  # timm's older files have one level
        recorded = description
    arguments = {key: value for key, value in arguments.items() if value is not None}  # as timm does
    for key, (is_possible, expected) in EXPECTED.items():
        if key in arguments and not is_possible(arguments[key]):
            raise ValueError(f"config.json has {key}={arguments[key]!r:.40}, expected {expected}")
    name = description.get("architecture")
    name = name if isinstance(name, str) else ""
    network: Any = None  # without values, as timm knows it by this name; a ResNet's tensors suffice
    if name and name not in BLOCKS:
        import timm  # late: it takes seconds to import

        with torch.device("meta"):
            network = timm.create_model(name) if timm.is_model(name) else None
    config = _config(name, network, arguments, recorded)
    parts = network.modules() if network is not None else ()
    usual_heads = next((part.num_heads for part in parts if hasattr(part, "num_heads")), None)
    values = {
        "heads": arguments.get("num_heads") or usual_heads,
        "stem_padding": int(arguments.get("stem_padding", 0)),
        "pool": POOLS.get(arguments.get("global_pool", "")),
        "license": recorded.get("license"),
    }
    usual = network.pretrained_cfg if network is not None and not recorded else {}
    known = {key: recorded.get(key) or usual.get(key) for key in ("mean", "std")}
    if normalisation := {key: value for key, value in known.items() if value}:
        values["normalisation"] = json.dumps(normalisation)
    if not name and "model_type" in description:
        values["transformers"] = description["model_type"]
    if config:
        values["network"] = config.model_dump_json()
    return {key: str(value) for key, value in values.items() if value}


def _part(description: dict[str, Any], key: str) -> dict[str, Any]:
    part = description.get(key)
    return part if isinstance(part, dict) else {}


def _config(
    name: str, network: Any, arguments: dict[str, Any], recorded: dict[str, Any]
) -> timm_backbone.Config | None:
    """Our configuration; None for what is recognised by its tensors. Refuses arguments that would be lost."""
    others = {key for key in arguments if key not in ARGUMENTS and "drop" not in key}
    known: set[str] = set()
    pool, pools = arguments.get("global_pool"), list[Any](POOLS)
    if name in BLOCKS:
        known, pools = {"stem_padding"}, ["avg"]
    elif network is None:
        known = others
    elif others and type(network).__name__ == "VisionTransformer":
        usual = inspect.signature(type(network)).parameters
        known = SHOWN | {key for key in others & usual.keys() if usual[key].default == arguments[key]}
        if pool != "avg" and arguments.get("fc_norm"):
            known.remove("fc_norm")
    else:
        attributes = ("global_pool", "pool_type")
        pools += [getattr(part, attribute, None) for part in network.modules() for attribute in attributes]
    wrong = others - known
    if pool not in (None, *pools):
        wrong.add("global_pool")
    if wrong:
        given = ", ".join(f"{key}={arguments[key]!r:.40}" for key in sorted(wrong))
        raise ValueError(
            f"config.json has {given}, which is not supported; without it, features would differ"
        )
    if others or network is None:
        return None
    sides = (_side(size) for size in (arguments.get("img_size"), recorded.get("input_size")))
    size = next(filter(None, sides), network.pretrained_cfg["input_size"][-1])
    return timm_backbone.Config(
        kind="timm",
        name=name,
        channels=arguments.get("in_chans", RGB),
        size=size,
        pool=POOLS.get(pool or ""),
        drop_path=0,
        checkpointing=False,
    )


def _side(size: Any) -> int | None:
    """The last or only side of a size of images in pixels; None if it is something else."""
    side = size[-1] if isinstance(size, list | tuple) and size else size
    return side if isinstance(side, int) and side > 0 else None


def config(metadata: dict[str, str], file: str) -> BackboneConfig | None:
    """The configuration in a file's metadata; None if there is none, and for a ResNet without streams.

    Our exports record it as `network`, and finished runs among their `parameters`.
    """
    recorded = {
        key: json_object(metadata[key], f"{file} has metadata {key}") for key in RECORDS if key in metadata
    }
    values = recorded.get("network") or recorded.get("parameters", {}).get("backbone")
    if not isinstance(values, dict) or (kind := values.get("kind")) not in kinds("networks.backbones"):
        return None
    if kind == "resnet" and not values.get("streams"):
        return None
    try:
        result: BackboneConfig = module_of("networks.backbones", kind).Config.model_validate(values)
    except ValidationError as error:
        raise ValueError(
            f"{file} records a network that this version does not know: {first_of(error)}"
        ) from None
    return result


def first_of(error: ValidationError) -> str:
    """The first error in recorded values, in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}, found {str(first['input'])[:40]!r}"
