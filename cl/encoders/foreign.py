"""Encoders trained by other programs, read from common checkpoints without running pickled code."""

import hashlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cl.encoders import _checkpoints, _descriptions, _resnets, _transformers, published
from cl.encoders._checkpoints import Recognised
from cl.networks import backbones
from cl.networks.backbones import Backbone, BackboneConfig
from cl.runtime.tensor_files import below, fingerprint

ORIGINS = {  # by the prefix of an encoder's tensor names
    "": "names of torchvision or timm",
    "module.encoder_q.": "MoCo",
    "module.base_encoder.": "MoCo v3",
    "module.encoder.": "SimSiam",
    "backbone.": "solo-learn or lightly",
    "teacher.backbone.": "the teacher of DINO or DINOv2",
}
# Prefixes of target encoders. The papers evaluate the online encoder, except for teachers (DINO, DINOv2).
TARGETS = re.compile(r"(encoder_k|momentum|target|ema)", re.IGNORECASE)
TEACHER = re.compile(r"teacher", re.IGNORECASE)


class ForeignEncoder(NamedTuple):
    """An encoder in eval mode, its configuration, and its origin as far as known.

    metadata: from a safetensors file and timm's description; empty for others.
    deviation, doubt: as in `Recognised`.
    """

    network: Backbone
    config: BackboneConfig
    origin: str
    metadata: dict[str, str]
    deviation: str = ""
    doubt: str = ""

    @property
    def architecture(self) -> str:
        """All that determines the features except the weights."""
        return f"{self.config.model_dump_json()} {self.deviation}"

    @property
    def sha256(self) -> str:
        """A hash of all that determines the features."""
        return identity(self.network, self.architecture)

    @property
    def normalisation(self) -> np.ndarray | None:
        """(2, 3): mean and standard deviation of RGB in the metadata; None if there are none."""
        text = self.metadata.get("transform") or self.metadata.get("normalisation", "")
        try:
            recorded = json.loads(text)
            values = np.array([recorded["mean"], recorded["std"]], np.float64)
        except (KeyError, RecursionError, TypeError, ValueError):  # missing, or another program's
            return None
        return values if values.shape == (2, 3) else None


def load(file: str, prefix: str | None = None, *, exact: bool = True) -> ForeignEncoder:
    """Read the encoder in a file.

    The file or timm's config.json beside it names the architecture; otherwise, or if a checkpoint's `arch`
    does not match, it is inferred from the tensors (`_resnets`, `_transformers`). All tensors must match,
    except heads and MAE's decoder.

    Args:
        file: a checkpoint, or a name of published weights, such as torchvision:resnet50 (`published`).
        prefix: the prefix of its tensor names, if the file holds several encoders.
        exact: refuse an encoder whose features the file does not determine; further training needs only the
            weights.

    Raises:
        ValueError: the file is missing, holds Python objects that only its own program can read, or does not
            hold exactly one network of a known architecture with finite weights.
    """
    path, known = published.fetch(file) if published.is_name(file) else (Path(file), {})
    tensors, metadata = _checkpoints.read(path, prefix)
    found = recognise(tensors, metadata | known, file, prefix)
    if exact and found.doubt:
        raise ValueError(found.doubt)
    return found


def recognise(
    tensors: dict[str, Tensor], metadata: dict[str, str], file: str, prefix: str | None = None
) -> ForeignEncoder:
    """The encoder with these tensors, even if there is `doubt`; see `load`."""
    config = _descriptions.config(metadata, file)
    layouts: dict[str, ModuleType] = {
        start: layout for layout in (_resnets, _transformers) for start in layout.prefixes(tensors)
    }
    found = None
    if config:
        try:
            found = _described(tensors, config, file, prefix)
            origin = "named by its metadata, its description or timm"
        except ValueError:
            if _checkpoints.ARCH not in metadata or not layouts:
                raise
    if not found:
        if not layouts and "transformers" in metadata:
            raise ValueError(
                f"{file} holds a {metadata['transformers']} of Hugging Face's transformers, whose tensor "
                "names are not supported; give the same weights in timm's format, such as timm:<name>"
            )
        prefix = _choose_prefix(list(layouts), tensors, file, prefix)
        found = layouts[prefix].recognise(tensors, prefix, metadata, file)
        origin = ORIGINS.get(prefix, f"names below {prefix!r}")
    network = found.network.eval()
    return ForeignEncoder(network, found.config, origin, metadata, found.deviation, found.doubt)


def _described(
    tensors: dict[str, Tensor], config: BackboneConfig, file: str, prefix: str | None
) -> Recognised:
    """The network of a known configuration, without what follows its features."""
    prefixes = _descriptions.prefixes(tensors, config, file)
    prefix = _choose_prefix(prefixes, tensors, file, prefix, config.title)
    found = Recognised(backbones.build_to_fill(config), config)
    known = found.network.state_dict()
    named = below(tensors, prefix).items()
    body = {name: tensor for name, tensor in named if name in known or not _resnets.is_head(name)}
    _checkpoints.fill(found.network, body, config.title, file)
    return found


def identity(network: Backbone, architecture: str) -> str:
    """A hash of all that determines the features; weights alone determine neither heads nor pooling."""
    return hashlib.sha256(f"{fingerprint(network)} {architecture}".encode()).hexdigest()


def _choose_prefix(
    prefixes: list[str],
    tensors: dict[str, Tensor],
    file: str,
    prefix: str | None,
    expected: str = "residual network or vision transformer",
) -> str:
    """The given prefix if an encoder has it; by default, that of the only encoder that papers evaluate."""
    if prefixes == ["networks.0.", "networks.1."]:
        raise ValueError(
            f"{file} holds the two networks of a backbone with streams, but does not record their "
            "parameters; use the file that the pipeline wrote"
        )
    if prefix is not None:
        prefix = _checkpoints.unwrapped(prefix)
        if prefix not in prefixes:
            found = ", ".join(map(repr, prefixes)) or "nothing"
            raise ValueError(f"{file} holds no encoder below {prefix!r}, only below {found}")
        return prefix
    evaluated = [start for start in prefixes if TEACHER.search(start)]
    evaluated = evaluated or [start for start in prefixes if not TARGETS.search(start)] or prefixes
    if len(evaluated) == 1:
        return evaluated[0]
    if evaluated:
        found = f"those below {', '.join(map(repr, evaluated))}"
        remedy = "choose one with --prefix, prefix= or FILE:PREFIX"
    else:
        found = f"tensors such as {next(iter(tensors))}" if tensors else "no tensors at all"
        remedy = "for another network of timm, put timm's config.json beside the file"
    raise ValueError(f"{file} should hold one {expected}, found {found}; {remedy}")
