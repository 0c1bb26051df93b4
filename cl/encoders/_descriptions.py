"""Networks named by metadata: our own records, and descriptions in timm's format."""

import inspect
import json
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor

from cl.networks import backbones
from cl.networks.backbones import BackboneConfig
from cl.networks.backbones import timm as timm_backbone
from cl.networks.backbones.resnet import BLOCKS
from cl.runtime.registry import kinds, module_of
from cl.runtime.tensor_files import json_object

POOLS: dict[str, Literal["cls", "average"]] = {"token": "cls", "avg": "average"}  # timm's names and ours
RECORDS = ("network", "parameters", "parent")  # metadata of our files that are JSON objects
# Arguments of timm.create_model that our configuration can hold, or that do not change a trained encoder.
ARGUMENTS = {"img_size", "dynamic_img_size", "num_classes", "global_pool", "zero_init_last", "weight_init"}
# Those of a vision transformer that its tensors show, and its heads, which metadata hold.
SHOWN = {"patch_size", "embed_dim", "depth", "init_values", "reg_tokens", "no_embed_class", "fc_norm"}
SHOWN |= {"num_heads"}


def metadata(description: dict[str, Any]) -> dict[str, str]:
    """The metadata in a description in timm's format.

    heads, pool, license: as in the description.
    network: our configuration in JSON. It is missing for networks that are recognised by their tensors:
        ResNets, vision transformers with other arguments, and networks that timm does not know by this name.
    normalisation: mean and standard deviation of RGB in [0, 1], in JSON.
    stem_padding: our addition to timm's arguments, because the tensors of a ResNet do not show it.
    transformers: the kind of model, if Hugging Face's transformers wrote the description.

    Args:
        description: the content of config.json in a timm folder; all keys are optional.

    Raises:
        ValueError: an argument has a wrong value, or is not supported.
    """
    arguments, recorded = _part(description, "model_args"), _part(description, "pretrained_cfg")
    arguments = {key: value for key, value in arguments.items() if value is not None}  # as timm does
    heads, pool = arguments.get("num_heads"), arguments.get("global_pool")
    padding = arguments.get("stem_padding")
    if heads is not None and not (isinstance(heads, int) and heads > 0):
        raise ValueError(f"config.json has num_heads={heads!r:.40}, expected a whole number above 0")
    if pool is not None and not isinstance(pool, str):
        raise ValueError(f"config.json has global_pool={pool!r:.40}, expected a name such as token or avg")
    if padding not in (None, 1, 2):
        raise ValueError(f"config.json has stem_padding={padding!r:.40}, expected 1 or 2 (pixels)")
    name = description.get("architecture")
    name = name if isinstance(name, str) else ""
    network = _network(name)
    config = _config(name, network, arguments, recorded)
    values = {
        "heads": heads or _heads(network),
        "stem_padding": padding and int(padding),
        "pool": POOLS.get(pool or ""),
        "license": recorded.get("license"),
    }
    if normalisation := {key: recorded[key] for key in ("mean", "std") if key in recorded}:
        values["normalisation"] = json.dumps(normalisation)
    if not name and "model_type" in description:
        values["transformers"] = description["model_type"]
    if config:
        values["network"] = config.model_dump_json()
    return {key: str(value) for key, value in values.items() if value}


def _part(description: dict[str, Any], key: str) -> dict[str, Any]:
    part = description.get(key)
    return part if isinstance(part, dict) else {}


def _network(name: str) -> Any:
    """The network that timm knows by this name, without values; None for ResNets, whose tensors suffice."""
    if not name or name in BLOCKS:
        return None
    import timm  # late: it takes seconds to import

    with torch.device("meta"):
        return timm.create_model(name) if timm.is_model(name) else None


def _heads(network: Any) -> int | None:
    """The number of heads of a transformer's first block; None for other networks."""
    parts = network.modules() if network is not None else ()
    return next((part.num_heads for part in parts if hasattr(part, "num_heads")), None)


def _config(
    name: str, network: Any, arguments: dict[str, Any], recorded: dict[str, Any]
) -> timm_backbone.Config | None:
    """Our configuration; None for what is recognised by its tensors. Refuses arguments that would be lost."""
    others = {key for key in arguments if key not in ARGUMENTS and "drop" not in key}
    if arguments.get("in_chans") == 3:
        others.remove("in_chans")
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
        found = ", ".join(f"{key}={arguments[key]!r:.40}" for key in sorted(wrong))
        raise ValueError(
            f"config.json has {found}, which is not supported; without it, features would differ"
        )
    if others or network is None:
        return None
    input_size = recorded.get("input_size")
    if not isinstance(input_size, list) or len(input_size) != 3:
        input_size = network.pretrained_cfg["input_size"]
    side = arguments.get("img_size") or input_size
    size = side[-1] if isinstance(side, list | tuple) and side else side
    if not (isinstance(size, int) and size > 0):
        raise ValueError(f"config.json has a size of images of {side!r:.40}, expected pixels such as 224")
    pool = POOLS.get(pool or "")
    return timm_backbone.Config(
        kind="timm", name=name, size=size, pool=pool, drop_path=0, checkpointing=False
    )


def config(metadata: dict[str, str], file: str) -> BackboneConfig | None:
    """The configuration in a file's metadata; None if there is none, and for a ResNet without streams.

    Our exports record it as `network`, and finished runs among their `parameters`.

    Raises:
        ValueError: cl has not written these metadata.
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


def prefixes(tensors: dict[str, Tensor], config: BackboneConfig, file: str) -> list[str]:
    """The prefixes below which most names of this network's tensors occur; blocks may repeat the first name.

    Raises:
        ValueError: timm does not know the network, or cannot build it from these settings.
    """
    try:
        with torch.device("meta"):
            names = list(backbones.build(config).state_dict())
    except (AssertionError, RuntimeError, TypeError) as error:  # networks differ in what they raise
        reason = backbones.reason_of(error)
        raise ValueError(f"{file} names a {config.title}, which cannot be built ({reason})") from None
    starts = (name.removesuffix(names[0]) for name in tensors if name.endswith(names[0]))
    return [
        start
        for start in starts
        if (not start or start.endswith("."))
        and 2 * sum(start + name in tensors for name in names) > len(names)
    ]
