"""Encoders trained by other programs, from common checkpoints, read without running pickled code."""

import hashlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from torch import Tensor

from cl.hub import _checkpoints, _descriptions, _resnets, _transformers, published
from cl.hub._checkpoints import Recognised
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
# Prefixes of target encoders. The papers evaluate the online encoder instead; but a teacher, as those of DINO
# and DINOv2, is evaluated in place of its student.
TARGETS = re.compile(r"(encoder_k|momentum|target|ema)", re.IGNORECASE)
TEACHER = re.compile(r"teacher", re.IGNORECASE)


class ForeignEncoder(NamedTuple):
    """An encoder in eval mode, its configuration, its origin as far as known, and a hash of all it computes.

    metadata: of a safetensors file, and from timm's description; empty for others.
    deviation: how the network differs from ours of the same configuration.
    doubt: why its features may be others; empty if the file determines them.
    """

    network: Backbone
    config: BackboneConfig
    origin: str
    sha256: str
    metadata: dict[str, str]
    deviation: str = ""
    doubt: str = ""

    @property
    def normalisation(self) -> np.ndarray | None:
        """(2, 3): the mean and standard deviation of RGB that the file or its description names, if any."""
        named = self.metadata.get("transform") or self.metadata.get("normalisation", "")
        try:
            recorded = json.loads(named)
            values = np.array([recorded["mean"], recorded["std"]], np.float64)
        except (KeyError, RecursionError, TypeError, ValueError):  # none, or of another program
            return None
        return values if values.shape == (2, 3) else None


def load(file: str, prefix: str | None = None, *, exact: bool = True) -> ForeignEncoder:
    """Read the encoder in a file.

    The architecture is what the file or a config.json of timm beside it says, or is inferred from the tensors
    (`_resnets`, `_transformers`). All must match, except those of classifiers and of MAE's decoder.

    Args:
        file: a checkpoint, or a name of published weights (`cl.hub.published`), as torchvision:resnet50.
        prefix: the prefix of its tensor names, if the file holds several encoders.
        exact: refuse an encoder whose features the file does not determine; training it further only needs
            its weights.

    Raises:
        ValueError: the file is missing, holds Python objects that only its own program can read, or does not
            hold exactly one network of a known architecture, with finite weights.
    """
    path, known = published.fetch(file) if published.is_name(file) else (Path(file), {})
    tensors, metadata = _checkpoints.read(path)
    found = recognise(tensors, metadata | known, file, prefix)
    if exact and found.doubt:
        raise ValueError(found.doubt)
    return found


def recognise(
    tensors: dict[str, Tensor], metadata: dict[str, str], file: str, prefix: str | None = None
) -> ForeignEncoder:
    """The encoder in a file, from the file's tensors, whether it is in `doubt` or not; see `load`."""
    config = _descriptions.config(metadata, file)
    if config:
        prefix = _choose_prefix(
            _descriptions.prefixes(tensors, config, file), tensors, file, prefix, config.title
        )
        left_out = _descriptions.classifier(config)
        body = {name: tensor for name, tensor in below(tensors, prefix).items() if name not in left_out}
        found = Recognised(backbones.build(config), config)
        _checkpoints.fill(found.network, body, config.title, file)
        origin = "named by its metadata, its description or timm"
    else:
        layouts: dict[str, ModuleType] = {
            start: layout for layout in (_resnets, _transformers) for start in layout.prefixes(tensors)
        }
        if not layouts and "transformers" in metadata:
            raise ValueError(
                f"{file} holds a {metadata['transformers']} of Hugging Face's transformers, whose names of "
                "tensors are not known here; give the same weights in timm's format, such as timm:<name>"
            )
        prefix = _choose_prefix(list(layouts), tensors, file, prefix)
        found = layouts[prefix].recognise(tensors, prefix, metadata, file)
        origin = ORIGINS.get(prefix, f"names below {prefix!r}")
    network = found.network.eval()
    described = f"{fingerprint(network)} {found.config.model_dump_json()} {found.deviation}"
    identity = hashlib.sha256(described.encode()).hexdigest()  # tensors show neither heads nor pooling
    return ForeignEncoder(network, found.config, origin, identity, metadata, found.deviation, found.doubt)


def _choose_prefix(
    prefixes: list[str],
    tensors: dict[str, Tensor],
    file: str,
    prefix: str | None,
    expected: str = "residual network or vision transformer",
) -> str:
    """The given prefix if an encoder has it; if none is given, that of the only one that papers evaluate.

    Raises:
        ValueError: no encoder matches, or several do.
    """
    if prefixes == ["networks.0.", "networks.1."]:
        raise ValueError(
            f"{file} holds the two networks of a backbone with streams, which only the pipeline's own "
            "evaluations and pipeline.export onnx take"
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
        prefixes_found = ", ".join(map(repr, evaluated))
        found = f"those below {prefixes_found}; choose one with --prefix, prefix= or FILE:PREFIX"
    else:
        found = f"tensors such as {next(iter(tensors))}" if tensors else "no tensors at all"
        found += "; for another network of timm, put timm's config.json beside the file"
    raise ValueError(f"{file} should hold one {expected}, found {found}")
