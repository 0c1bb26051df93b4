"""What names a network without its tensors: our own records, and descriptions in timm's format."""

import json
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor

from cl.networks import backbones
from cl.networks.backbones import BackboneConfig
from cl.networks.backbones import timm as timm_backbone
from cl.networks.resnet import BLOCKS
from cl.runtime.registry import kinds, module_of
from cl.runtime.tensor_files import json_object

POOLS: dict[str, Literal["cls", "average"]] = {"token": "cls", "avg": "average"}  # timm's names and ours
# Arguments of timm.create_model that our configuration can hold, or that change nothing in an encoder.
RECORDS = ("network", "parameters", "parent")  # metadata of our files that are JSON objects
ARGUMENTS = {"img_size", "dynamic_img_size", "in_chans", "num_classes", "global_pool", "drop_rate"}


def metadata(description: dict[str, Any]) -> dict[str, str]:
    """What a description in timm's format says: `heads`, `pool`, `license`; as `network`, our configuration.

    `normalisation` are the mean and the standard deviation of RGB in [0, 1], in JSON.
    Not in timm's: `stem_padding` among the arguments, which no tensor of a ResNet shows; as `transformers`,
    the kind of a model of that library.

    `network` is missing for ResNets, which are recognised by their tensors, and for networks that timm does
    not know under this name or that our configuration cannot describe.

    Args:
        description: the content of config.json in a folder of timm; only `architecture` must be there.
    """
    arguments, recorded = _part(description, "model_args"), _part(description, "pretrained_cfg")
    heads, pool = arguments.get("num_heads"), arguments.get("global_pool")
    padding = arguments.get("stem_padding")
    if heads is not None and not (isinstance(heads, int) and heads > 0):
        raise ValueError(f"config.json has num_heads={heads!r:.40}, expected a whole number above 0")
    if pool is not None and not isinstance(pool, str):
        raise ValueError(f"config.json has global_pool={pool!r:.40}, expected a name such as token or avg")
    if padding not in (None, 1, 2):
        raise ValueError(f"config.json has stem_padding={padding!r:.40}, expected 1 or 2 (pixels)")
    found = {
        "heads": heads,
        "stem_padding": padding and int(padding),
        "pool": POOLS.get(pool or ""),
        "license": recorded.get("license"),
    }
    name = description.get("architecture")
    if normalisation := {key: recorded[key] for key in ("mean", "std") if key in recorded}:
        found["normalisation"] = json.dumps(normalisation)
    if name is None and "model_type" in description:
        found["transformers"] = description["model_type"]
    if isinstance(name, str) and (config := _config(name, arguments, recorded)):
        found["network"] = config.model_dump_json()
    return {key: str(value) for key, value in found.items() if value}


def _part(description: dict[str, Any], key: str) -> dict[str, Any]:
    part = description.get(key)
    return part if isinstance(part, dict) else {}


def _config(name: str, arguments: dict[str, Any], recorded: dict[str, Any]) -> timm_backbone.Config | None:
    import timm  # late: it takes seconds to import

    if name in BLOCKS or not timm.is_model(name):
        return None
    usual, pool = _on_meta(name), arguments.get("global_pool")
    own = [getattr(part, name, None) for part in usual.modules() for name in ("global_pool", "pool_type")]
    if arguments.keys() - ARGUMENTS or pool not in (None, *POOLS, *own):
        return None
    recorded_size = recorded.get("input_size")
    if not isinstance(recorded_size, list) or len(recorded_size) != 3:
        recorded_size = usual.pretrained_cfg["input_size"]
    side = arguments.get("img_size") or recorded_size
    size = side[-1] if isinstance(side, list | tuple) and side else side
    if not (isinstance(size, int) and size > 0):
        raise ValueError(f"config.json has a size of images of {side!r:.40}, expected pixels such as 224")
    return timm_backbone.Config(
        kind="timm",
        name=name,
        size=size,
        pool=POOLS.get(pool or ""),
        drop_path=0,
        checkpointing=False,
    )


def config(found: dict[str, str], file: str) -> BackboneConfig | None:
    """The configuration that a file's metadata record; None for ResNets, and if there is none.

    Our exports record it as `network`, and finished runs among their `parameters`.

    Raises:
        ValueError: the metadata are not what we write.
    """
    recorded = {key: json_object(found[key], f"{file} has metadata {key}") for key in RECORDS if key in found}
    values = recorded.get("network") or recorded.get("parameters", {}).get("backbone")
    kind = values.get("kind") if isinstance(values, dict) else None
    if kind == "resnet" or kind not in kinds("networks.backbones"):
        return None
    try:
        result: BackboneConfig = module_of("networks.backbones", kind).Config.model_validate(values)
    except ValidationError as error:
        raise ValueError(
            f"{file} records a network that this version does not know: {first_of(error)}"
        ) from None
    return result


def first_of(error: ValidationError) -> str:
    """The first thing that is wrong with recorded values, in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}, found {str(first['input'])[:40]!r}"


def prefixes(tensors: dict[str, Tensor], config: BackboneConfig, file: str) -> list[str]:
    """What precedes the names of such a network's tensors; most of them, as blocks share the first one's.

    Raises:
        ValueError: timm does not know the network, or cannot build it from these settings.
    """
    try:
        with torch.device("meta"):
            names = list(backbones.build(config).state_dict())
    except (AssertionError, RuntimeError, TypeError) as error:  # each network has its own way
        reason = backbones.reason_of(error)
        raise ValueError(f"{file} names a {config.title}, which cannot be built ({reason})") from None
    starts = (name.removesuffix(names[0]) for name in tensors if name.endswith(names[0]))
    return [
        start
        for start in starts
        if (not start or start.endswith("."))
        and 2 * sum(start + name in tensors for name in names) > len(names)
    ]


def classifier(config: BackboneConfig) -> set[str]:
    """The names of the tensors that belong to the classifier of a network of timm."""
    if not isinstance(config, timm_backbone.Config):
        return set()
    whole, encoder = _on_meta(config.name), _on_meta(config.name, num_classes=0)
    return whole.state_dict().keys() - encoder.state_dict().keys()


def _on_meta(name: str, **options: Any) -> Any:
    """The network as timm builds it, with shapes and no values."""
    import timm

    with torch.device("meta"):
        return timm.create_model(name, **options)
