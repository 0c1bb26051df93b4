"""The weights that pretraining starts from: a backbone, or everything that an earlier run had learnt."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cl.networks.backbones import BackboneConfig, with_positions_of
from cl.runtime.tensor_files import below, load_state, load_tensors, save_tensors
from cl.training.checkpoints import load_optimizer_state

FILE = Path("models/start.safetensors")  # where `save` has written it, for messages
SCHEDULE = ("schedule", "warmup_epochs", "warmup_start", "per", "final", "milestones", "gamma")
# What may differ between a run and the one that it continues.
CHANGEABLE = ("seed", "optim.epochs", "optim.base_lr", *(f"optim.{name}" for name in SCHEDULE))


@dataclass(frozen=True)
class Start:
    """What a run starts from, or nothing.

    tensors: `backbone.<name>` after `init`; `method.<name>` and `optimizer.<name>` after `start_from`.
    origin: the hashes of the weights and their licence; after `init` the architecture, after `start_from` the
        parent's pretraining parameters, the hash of its data, and its number of epochs.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """The epochs that the continued run was trained for."""
        return int(self.origin.get("epochs", 0))

    def summary(self, name: str | None) -> dict[str, Any] | None:
        """What provenance says about the parent: name, hashes, licence, and epochs if it is continued."""
        shown = {key: self.origin[key] for key in self.origin if key in ("hashes", "licence", "epochs")}
        return {"name": name} | shown if name else None

    def check(self, hashes: list[str], parameters: dict[str, Any], data: str) -> None:
        """Check that these weights fit a run.

        Raises:
            ValueError: the hashes differ, or the run to continue had other parameters or other data.
        """
        if self.origin.get("hashes", []) != hashes:
            raise ValueError(f"{FILE} is not what params.yaml names: run `dvc repro weights`")
        if "parameters" not in self.origin:
            return
        if difference := differing(parameters, self.origin["parameters"]):
            raise ValueError(f"start_from continues an experiment with {difference}")
        if self.origin["data"] != data:
            raise ValueError(
                "start_from requires the images the experiment was trained on, but this data set differs; "
                "init=<experiment> takes its backbone alone"
            )

    def load_backbone(self, network: nn.Module, config: BackboneConfig) -> None:
        """Give a new network the weights of `init`, if there are any; positions are interpolated to its size.

        Raises:
            ValueError: they belong to another architecture.
        """
        if not (tensors := below(self.tensors, "backbone.")):
            return
        found, expected = self.origin["architecture"], config.architecture
        if found != expected:
            raise ValueError(f"init gives a {found}, but backbone is a {expected}; choose the same")
        tensors = with_positions_of(network, tensors)
        load_state(network, tensors, FILE, "choose the size of images that init was trained with")

    def load_state(self, method: nn.Module, optimizer: Optimizer) -> None:
        """Give a new method and its optimizer the state of `start_from`, if there is one; frees the tensors.

        Raises:
            ValueError: it belongs to another method.
        """
        if tensors := below(self.tensors, "method."):
            load_state(method, tensors, FILE, "choose the parameters of the experiment that start_from names")
            load_optimizer_state(method, optimizer, below(self.tensors, "optimizer."))
        self.tensors.clear()


def differing(ours: dict[str, Any], parents: dict[str, Any]) -> str | None:
    """The first parameter that keeps a run from continuing its parent; None if there is none."""
    fixed, theirs = _fixed(ours), _fixed(parents)
    for key, value in fixed.items():
        if value != theirs.get(key):
            return f"{key}={theirs.get(key)}, found {value}; only {', '.join(CHANGEABLE)} may differ"
    return None


def _fixed(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters that a continued run shares with its parent."""
    optim = {f"optim.{key}": value for key, value in parameters["optim"].items()}
    return {key: value for key, value in (parameters | optim).items() if key not in ("optim", *CHANGEABLE)}


def from_backbone(network: nn.Module, config: BackboneConfig, origin: dict[str, Any]) -> Start:
    """A start from the weights of a network."""
    tensors = {f"backbone.{name}": tensor for name, tensor in network.state_dict().items()}
    return Start(tensors, {**origin, "architecture": config.architecture})


def from_run(method: Path, optimizer: Path, hashes: list[str]) -> Start:
    """A start from everything that a run of this project left in these files of `models/`."""
    tensors, metadata = load_tensors(method)
    tensors = {f"method.{name}": tensor for name, tensor in tensors.items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in load_tensors(optimizer)[0].items()}
    origin = {
        "hashes": hashes,
        "licence": licence(metadata),
        "epochs": int(metadata["epochs"]),
        "parameters": json.loads(metadata["parameters"]),
        "data": metadata["data_manifest_sha256"],
    }
    return Start(tensors, origin)


def licence(metadata: dict[str, str]) -> str:
    """What a file of weights says about its licence, or that of the weights it started from; or unknown."""
    parents = json.loads(metadata.get("parent", "{}")).get("licence", "unknown")
    return metadata.get("licence") or metadata.get("license") or str(parents)


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
