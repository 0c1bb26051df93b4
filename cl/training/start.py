"""The weights that pretraining starts from: a backbone, or everything that an earlier run had learnt."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cl.networks import backbones
from cl.runtime.tensor_files import below, load_state, load_tensors, save_tensors
from cl.training.checkpoints import load_optimizer_state


@dataclass(frozen=True)
class Start:
    """What a run starts from, or nothing.

    tensors: `backbone.<name>` after `init`; `method.<name>` and `optimizer.<name>` after `start_from`.
    origin: the parent's name, hash and licence; after `init` its architecture, after `start_from` its
        pretraining parameters and number of epochs.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """The epochs that the continued run was trained for."""
        return int(self.origin.get("epochs", 0))

    def load_backbone(self, network: nn.Module, config: backbones.Config) -> None:
        """Give a new network the weights of `init`, if there are any.

        Raises:
            ValueError: they belong to another architecture.
        """
        if not (tensors := below(self.tensors, "backbone.")):
            return
        found, expected = self.origin["architecture"], _architecture(config)
        if found != expected:
            raise ValueError(
                f"init={self.origin['name']} has a {found}, but backbone is a {expected}; choose the same"
            )
        network.load_state_dict(tensors)

    def load_state(self, method: nn.Module, optimizer: Optimizer) -> None:
        """Give a new method and its optimizer the state of `start_from`, if there is one.

        Raises:
            ValueError: it belongs to another method.
        """
        if tensors := below(self.tensors, "method."):
            name = Path(self.origin["name"])
            load_state(method, tensors, name, "choose the parameters of that experiment")
            load_optimizer_state(method, optimizer, below(self.tensors, "optimizer."))


def from_backbone(network: nn.Module, config: backbones.Config, origin: dict[str, Any]) -> Start:
    """A start from the weights of a network."""
    tensors = {f"backbone.{name}": tensor for name, tensor in network.state_dict().items()}
    return Start(tensors, {**origin, "architecture": _architecture(config)})


def from_run(method: Path, optimizer: Path, origin: dict[str, Any]) -> Start:
    """A start from everything that a run of this project left in these files of `models/`."""
    tensors, metadata = load_tensors(method)
    tensors = {f"method.{name}": tensor for name, tensor in tensors.items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in load_tensors(optimizer)[0].items()}
    about = {"epochs": int(metadata["epochs"]), "parameters": json.loads(metadata["parameters"])}
    return Start(tensors, {**origin, "licence": licence(metadata), **about})


def licence(metadata: dict[str, str]) -> str:
    """The licence of a model of this project by its file's metadata: its parent's, or unknown."""
    return str(json.loads(metadata.get("parent", "{}")).get("licence", "unknown"))


def _architecture(config: backbones.Config) -> str:
    return f"{config.kind} of width {config.width} with {config.stem} stem"


def save(start: Start, path: Path) -> None:
    """Write it to a file, which is empty without weights."""
    if start.tensors:
        save_tensors(start.tensors, path, {"origin": json.dumps(start.origin)})
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def load(path: Path) -> Start:
    """Read what `save` wrote."""
    if path.is_file() and not path.stat().st_size:
        return Start()
    tensors, metadata = load_tensors(path)
    return Start(tensors, json.loads(metadata["origin"]))
