"""Every network of timm, by timm's name and with timm's names of tensors."""

import difflib
import re
from functools import cache
from typing import Any, Literal, cast

import torch
from pydantic import field_validator
from torch import nn

from cl.networks.backbones import Backbone, SizedConfig, channels_in_timm, reason_of, resnet, vit

PLAIN_VIT = re.compile(r"(?:vit|deit)_(tiny|small|base)_patch(\d+)_\d+")
HEADS = {"tiny": 3, "small": 6, "base": 12}  # each 64 wide
REMEDIES = {"pool": "null", "drop_path": "0", "channels": "another network for bands"}


class Config(SizedConfig):
    """A network that timm builds.

    pool: `cls`, the class token; `average`, over all places; null, the network's own.
    """

    kind: Literal["timm"]
    name: str
    pool: Literal["cls", "average"] | None

    @field_validator("name")
    @classmethod
    def _exists(cls, name: str) -> str:
        import timm  # late: it takes seconds to import

        if "." in name and timm.is_model(name):
            network = name.partition(".")[0]
            raise ValueError(f"{name} names weights; choose {network}, and start from timm:{name}")
        if not timm.is_model(name):
            near = difflib.get_close_matches(name, timm.list_models(), n=5) or ["convnext_tiny"]
            raise ValueError(f"{name} is not a network of timm; choose for example {', '.join(near)}")
        return name

    @property
    def architecture(self) -> str:
        """As of kind=resnet or kind=vit if equal tensors give equal features there; otherwise timm's name."""
        parts: dict[str, Any]
        if self.name in resnet.PUBLISHED:
            parts = {"name": self.name, "width": 1, "stem": "imagenet"}
            return resnet.Config.model_construct(**parts).architecture
        match = PLAIN_VIT.fullmatch(self.name)
        if match is None or self.pool == "average":  # timm normalises the average after pooling
            return self.name
        heads = HEADS[match[1]]
        parts = {"patch": int(match[2]), "width": 64 * heads, "depth": 12, "heads": heads}
        return vit.Config.model_construct(**parts, layer_scale=None, registers=0).architecture

    def in_timm(self) -> tuple[str, dict[str, Any]]:
        return self.name, _options(self.model_copy(update={"drop_path": 0, "checkpointing": False}))

    def outline(self) -> nn.Module:
        network = _empty(self)
        _set_checkpointing(self, network)
        return network


def build(config: Config) -> Backbone:
    """The network as `timm.create_model` initialises it, without its classifier."""
    network = _create(config, _options(config))
    _set_checkpointing(config, network)
    with torch.no_grad():  # for some networks, timm's `num_features` is not the width of the features
        images = torch.empty(2, config.channels, config.size, config.size, device="meta")
        features = _empty(config).eval()(images)
    network.fc_features = features.shape[1]
    return network


def _empty(config: Config) -> Backbone:
    """The network on the meta device, in which tensors have shapes and no values."""
    with torch.device("meta"):
        return _create(config, _options(config))


def _create(config: Config, options: dict[str, Any]) -> Backbone:
    import timm

    return cast("Backbone", timm.create_model(config.name, num_classes=0, **options))


@cache
def _options(config: Config) -> dict[str, Any]:
    """The options that this network takes, found by trying them."""
    chosen: dict[str, Any] = {}
    if channels := channels_in_timm(config):
        chosen["channels"] = channels
    if config.pool:
        chosen["pool"] = {"global_pool": {"cls": "token", "average": "avg"}[config.pool]}
    if config.drop_path:
        chosen["drop_path"] = {"drop_path_rate": config.drop_path}
    for name, option in chosen.items():
        if reason := _refusal(config, option):
            raise ValueError(
                f"{config.name} does not take backbone.{name}={getattr(config, name)} ({reason}); choose "
                f"{REMEDIES[name]}"
            )
    asked = {key: value for option in chosen.values() for key, value in option.items()}
    sized = asked | {"img_size": config.size}
    tried = (sized | {"dynamic_img_size": True}, sized)
    return next((options for options in tried if not _refusal(config, options)), asked)


def _refusal(config: Config, options: dict[str, Any]) -> str:
    """Why timm does not build the network with these options; empty if it does."""
    try:
        with torch.device("meta"):
            _create(config, options)
    except (TypeError, AssertionError) as error:
        return reason_of(error)
    return ""


def _set_checkpointing(config: Config, network: Backbone) -> None:
    """Switch recomputation on if it is asked for and the network can do it."""
    if config.checkpointing:
        try:
            cast("Any", network).set_grad_checkpointing(True)
        except (AttributeError, AssertionError) as error:
            raise ValueError(
                f"{config.name} does not take backbone.checkpointing=true ({reason_of(error)}); choose false"
            ) from None
