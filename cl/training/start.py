"""The weights that pretraining starts from: a backbone, or the complete state of an earlier run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cl.networks.backbones import BackboneConfig, with_channels_of, with_positions_of
from cl.runtime.tensor_files import below, check_values, licence, load_state, load_tensors, save_tensors
from cl.training.checkpoints import load_optimizer_state

FILE = Path("models/start.safetensors")  # written by `save`; named in messages
# Parameters that older experiments lack, and the values that leave them as they were.
ADDED: dict[str, Any] = {"arms": [], "ungrouped": False, "teacher": None}
ADDED_TO_PARTS = {("loss", "infonce"): {"positives": "each"}, ("method", "simclr"): {"targets": "first_two"}}
SCHEDULE = ("schedule", "warmup_epochs", "warmup_start", "per", "final", "milestones", "gamma")
OPTIM = ("epochs", "base_lr", "keep_every", "compile", *SCHEDULE)
# The parameters that may differ between a run and the run that it continues.
CHANGEABLE = ("seed", "precision", *(f"optim.{name}" for name in OPTIM))


@dataclass(frozen=True)
class Start:
    """The weights that a run starts from, if any.

    tensors: `backbone.<name>` with `init`; `method.<name>` and `optimizer.<name>` with `start_from`.
    origin: the hashes of the weights and their licence; with `init`, also the architecture and the names of
        bands; with `start_from`, also the parent's pretraining parameters, the hash of its data, and its
        epochs.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """The epochs that the continued run was trained for."""
        return int(self.origin.get("epochs", 0))

    def summary(self, name: str | None) -> dict[str, Any] | None:
        """The parent's entry in the provenance: name, hashes, licence, and epochs if it is continued."""
        entry = {key: self.origin[key] for key in self.origin if key in ("hashes", "licence", "epochs")}
        return {"name": name} | entry if name else None

    def check(self, hashes: list[str], parameters: dict[str, Any], data: str) -> None:
        """Raises ValueError if these are other weights, or of a run with other parameters or data."""
        if self.origin.get("hashes", []) != hashes:
            raise ValueError(f"{FILE} does not contain the weights in params.yaml: run `dvc repro weights`")
        if "parameters" not in self.origin:
            return
        if difference := differing(parameters, self.origin["parameters"]):
            raise ValueError(f"start_from continues an experiment with {difference}")
        if self.origin["data"] != data:
            raise ValueError(
                "start_from continues on the same images, found others; init=<experiment> takes its backbone "
                "to other images"
            )

    def check_bands(self, names: Sequence[str]) -> None:
        """Raises ValueError if a band of `init` is elsewhere in the images, or if these are RGB (no names).

        Numbers name no certain band.
        """
        theirs = self.origin.get("bands", ())
        moved = set(theirs) & set(names) - {a for a, b in zip(theirs, names, strict=False) if a == b}
        if any(not name.isdigit() for name in moved) or (theirs and not names):
            found = f"have {', '.join(names)}" if names else "are RGB"
            raise ValueError(
                f"init takes the bands {', '.join(theirs)}, the images {found}; list their bands in "
                "dataset.channels in the order of init, or choose another init"
            )

    def load_backbone(self, network: nn.Module, config: BackboneConfig) -> None:
        """Load the weights of `init`, if any, into a new network; positions are interpolated to its size."""
        if not (tensors := below(self.tensors, "backbone.")):
            return
        found, expected = self.origin["architecture"], config.architecture
        if found != expected:
            raise ValueError(f"init gives a {found}, but backbone is a {expected}; choose the same")
        tensors = with_channels_of(network, with_positions_of(network, tensors))
        load_state(network, tensors, FILE, "choose the size of images that init was trained with")

    def load_state(self, method: nn.Module, optimizer: Optimizer) -> None:
        """Load the state of `start_from`, if any, into a new method and its optimizer; frees the tensors."""
        if tensors := below(self.tensors, "method."):
            load_state(method, tensors, FILE, "choose the parameters of the experiment that start_from names")
            load_optimizer_state(method, optimizer, below(self.tensors, "optimizer."))
        self.tensors.clear()


def differing(ours: dict[str, Any], parents: dict[str, Any]) -> str | None:
    """The first parameter that prevents a run from continuing its parent; None if it may continue."""
    fixed, theirs = _fixed(ours), ADDED | _fixed(parents)
    for (part, kind), added in ADDED_TO_PARTS.items():
        if theirs.get(part, {}).get("kind") == kind:
            theirs[part] = added | theirs[part]
    for key, value in fixed.items():
        if value != theirs.get(key):
            return f"{key}={theirs.get(key)}, found {value}; only {', '.join(CHANGEABLE)} may differ"
    return None


def _fixed(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters that a run must share with the run that it continues."""
    optim = {f"optim.{key}": value for key, value in parameters["optim"].items()}
    return {key: value for key, value in (parameters | optim).items() if key not in ("optim", *CHANGEABLE)}


def from_backbone(network: nn.Module, config: BackboneConfig, origin: dict[str, Any]) -> Start:
    """A start from the weights of a network."""
    tensors = {f"backbone.{name}": tensor for name, tensor in network.state_dict().items()}
    return Start(tensors, {**origin, "architecture": config.architecture})


def from_run(method: Path, optimizer: Path, hashes: list[str]) -> Start:
    """A start from the state of a method and its optimizer, as a run of this project saved it."""
    tensors, metadata = load_tensors(method)
    states, _ = load_tensors(optimizer)
    check_values(tensors, method)
    check_values(states, optimizer)
    teacher = json.loads(metadata.get("teacher", "{}"))  # older experiments did not list it as a parameter
    taught = {"teacher": {key: teacher[key] for key in ("name", "hash")}} if teacher else {}
    tensors = {f"method.{name}": tensor for name, tensor in tensors.items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in states.items()}
    origin = {
        "hashes": hashes,
        "licence": licence(metadata),
        "epochs": int(metadata["epochs"]),
        "parameters": taught | json.loads(metadata["parameters"]),
        "data": metadata["data_manifest_sha256"],
    }
    return Start(tensors, origin)


def save(start: Start, path: Path) -> None:
    """Write a start to a file."""
    save_tensors(start.tensors, path, {"origin": json.dumps(start.origin)})


def load(path: Path) -> Start:
    """Read a start that `save` wrote."""
    tensors, metadata = load_tensors(path)
    return Start(tensors, json.loads(metadata["origin"]))
