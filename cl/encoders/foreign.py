"""Encoders trained by other programs, read from common checkpoints without running pickled code."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cl.encoders import _checkpoints, _descriptions, _resnets, _transformers, published
from cl.encoders._checkpoints import ARCH, CHOICE, OTHER_NETWORKS, Converted
from cl.networks import backbones
from cl.networks.backbones import Backbone, BackboneConfig
from cl.runtime.tensor_files import below, check_values, fingerprint

ORIGINS = {  # by the prefix of an encoder's tensor names
    "": "names of torchvision or timm",
    "module.encoder_q.": "MoCo",
    "module.base_encoder.": "MoCo v3",
    "module.encoder.": "SimSiam",
    "backbone.": "solo-learn or lightly",
    "teacher.backbone.": "the teacher of DINO or DINOv2",
}
DESCRIBED = "named by its metadata, its description or timm"  # the origin of others
# In prefixes of target encoders. The papers evaluate the online encoder, except for teachers (DINO, DINOv2).
TARGETS = re.compile(r"(?<![a-z])(encoder_k(ey)?|momentum|target|ema)(?-i:(?![a-z]))", re.IGNORECASE)
TEACHER = re.compile(r"(?<![a-z])teacher(?-i:(?![a-z]))", re.IGNORECASE)
CORRELATED = 0.1  # the least cosine between a network's weights and those of its moving average
Converter = Callable[[dict[str, Tensor], str, dict[str, str], str], Converted]
# Networks recognised by their tensors: the name of a tensor that each has once, in regular expressions; the
# beginning of other names beside it; and what converts the tensors.
KINDS: tuple[tuple[str, str, Converter], ...] = (
    (r"(?:layer1|\d+)\.0\.conv1\.weight", "", _resnets.converted),
    (r"blocks\.0\.(?:0\.)?attn\.qkv\.weight", "patch_embed.", _transformers.converted),
)


class ForeignEncoder(NamedTuple):
    """An encoder in eval mode, its configuration, and its origin as far as known.

    metadata: from a safetensors file and timm's description; empty for others.
    deviation, doubt: as in `Converted`; empty for none.
    choice: which of the file's networks it is, in words; empty if there is one.
    """

    network: Backbone
    config: BackboneConfig
    origin: str
    metadata: dict[str, str]
    deviation: str = ""
    doubt: str = ""
    choice: str = ""

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


def load(file: str, prefix: str | None = None, *, exact: bool = True, name: str = "") -> ForeignEncoder:
    """Read the encoder in a file.

    The file or timm's config.json beside it names the architecture; otherwise, or if a checkpoint's `arch`
    does not match, it is inferred from the tensors (`_resnets`, `_transformers`). All tensors must match,
    except heads and MAE's decoder.

    Args:
        file: a checkpoint, or a name of published weights, such as torchvision:resnet50 (`published`).
        prefix: the prefix of its tensor names, if the file holds several encoders.
        exact: refuse an encoder whose features the file does not determine; further training needs only the
            weights.
        name: what messages call the file; empty for `file`.

    Raises:
        ValueError: the file is missing, holds Python objects that only its own program can read, or does not
            hold exactly one network of a known architecture with finite weights.
    """
    place, prefix = published.file_and_prefix(file, prefix)
    path, known = published.fetch(str(place))
    tensors, metadata = _checkpoints.read(path, prefix, described=not published.is_name(file))
    encoder = _recognised(tensors, metadata | known, name or file, prefix)
    if exact and encoder.doubt:
        raise ValueError(encoder.doubt)
    encoder.network.eval()
    return encoder


def _recognised(
    tensors: dict[str, Tensor], metadata: dict[str, str], file: str, prefix: str | None
) -> ForeignEncoder:
    converters = _converters(tensors)
    if config := _descriptions.config(metadata, file):
        try:
            bodies = _bodies(config, tensors, file)
            start, choice = _chosen(list(bodies), tensors, metadata, file, prefix, config.title)
            network = _filled(config, bodies[start], file)
            return ForeignEncoder(network, config, DESCRIBED, metadata, choice=choice)
        except ValueError:
            if ARCH not in metadata or not converters:
                raise
            metadata = {key: value for key, value in metadata.items() if key != "normalisation"}
    if not converters and "transformers" in metadata:
        raise ValueError(
            f"{file} holds a {metadata['transformers']} of Hugging Face's transformers, whose tensor names "
            "are not supported; give the same weights in timm's format, such as timm:<name>"
        )
    start, choice = _chosen(list(converters), tensors, metadata, file, prefix)
    config, named, deviations, doubt = converters[start](tensors, start, metadata, file)
    network = _filled(config, named, file)
    for deviation in _resnets.MENDS.keys() & deviations:
        _resnets.MENDS[deviation](network)
    origin = ORIGINS.get(start, f"names below {start!r}")
    return ForeignEncoder(network, config, origin, metadata, " and ".join(deviations), doubt, choice)


def _converters(tensors: dict[str, Tensor]) -> dict[str, Converter]:
    """What converts each encoder that is recognised by its tensors, by the prefix of their names."""
    return {
        match[1]: converter
        for once, beside, converter in KINDS
        for name in tensors
        if (match := re.fullmatch(rf"((?:.*\.)?){once}", name))
        and any(other.startswith(match[1] + beside) for other in tensors)
    }


def _bodies(config: BackboneConfig, tensors: dict[str, Tensor], file: str) -> dict[str, dict[str, Tensor]]:
    """The tensors of each network that may have this configuration, without heads, by their prefix.

    Most names of the network's tensors must occur; blocks may repeat the first name.
    """
    try:
        with torch.device("meta"):
            names = list(backbones.build(config).state_dict())
    except (AssertionError, RuntimeError, TypeError) as error:  # networks differ in what they raise
        reason = backbones.reason_of(error)
        raise ValueError(f"{file} names a {config.title}, which cannot be built ({reason})") from None
    known = set(names)
    starts = (name.removesuffix(names[0]) for name in tensors if name.endswith(names[0]))
    bodies = {start: below(tensors, start) for start in starts if not start or start.endswith(".")}
    return {
        start: {name: body[name] for name in body if name in known or not _resnets.is_head(name)}
        for start, body in bodies.items()
        if 2 * len(known & body.keys()) > len(known)
    }


def _filled(config: BackboneConfig, tensors: dict[str, Tensor], file: str) -> Backbone:
    """The network with all of an encoder's tensors."""
    network = backbones.build_to_fill(config)
    expected = network.state_dict()
    for name in tensors:
        if name in expected and expected[name].is_floating_point() and (kind := _unusable(tensors[name])):
            raise ValueError(
                f"{file} has {kind} numbers in {name}, expected floating-point numbers; save the weights "
                "before they are quantised or packed"
            )
    # Files from before torch 0.4.1 lack the counters of batches, which nothing here reads.
    counters = {name: torch.tensor(0) for name in expected if name.endswith("num_batches_tracked")}
    tensors = counters | tensors
    shared = tensors.keys() & expected.keys()
    differences = [f"has {name}, which this network lacks" for name in tensors.keys() - shared]
    differences += [f"lacks {name}" for name in expected.keys() - shared]
    differences += [
        f"has {name} of shape {list(tensors[name].shape)}, expected {list(expected[name].shape)}"
        for name in shared
        if tensors[name].shape != expected[name].shape
    ]
    if differences:
        more = f" (and {len(differences) - 1} more differences)" if differences[1:] else ""
        raise ValueError(f"{file} is not a {config.title}: it {min(differences)}{more}; {OTHER_NETWORKS}")
    network.load_state_dict(tensors)
    check_values(network.state_dict(), file)  # after the conversion, which may overflow
    return network


def _unusable(tensor: Tensor) -> str:
    """The kind of numbers in a tensor if they cannot be weights; otherwise empty."""
    if tensor.layout is not torch.strided:
        return "sparse"
    if tensor.is_meta:
        return "no"
    return "" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")


def identity(network: Backbone, architecture: str) -> str:
    """A hash of all that determines the features; weights alone determine neither heads nor pooling."""
    return hashlib.sha256(f"{fingerprint(network)} {architecture}".encode()).hexdigest()


def _evaluated(
    averages: list[str], others: list[str], evaluated: list[str], tensors: dict[str, Tensor]
) -> list[str]:
    """`evaluated`, one of both lists, if `averages` are moving averages of `others`.

    Networks of another shape taught the others. The weights of networks that were trained apart are
    uncorrelated: then either may be meant.
    """
    shape, average = _convolutions(below(tensors, averages[0]))
    for other in others:
        other_shape, online = _convolutions(below(tensors, other))
        if other_shape != shape:
            return others
        if average @ online < CORRELATED * average.norm() * online.norm():
            return [*averages, *others]
    return evaluated


def _convolutions(tensors: dict[str, Tensor]) -> tuple[list[tuple[str, torch.Size]], Tensor]:
    """Names and shapes of the weights of convolutions, and all of them in one vector."""
    weights = {name: x for name, x in sorted(tensors.items()) if x.ndim == 4 and not _unusable(x)}
    values = [torch.zeros(1), *(x.flatten() for x in weights.values())]
    return [(name, x.shape) for name, x in weights.items()], torch.cat([x.double() for x in values])


def _chosen(
    prefixes: list[str],
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
    file: str,
    prefix: str | None,
    expected: str = "residual network or vision transformer",
) -> tuple[str, str]:
    """The given prefix if an encoder has it; by default, that of the only encoder that papers evaluate.

    Also which of several networks that is, in words, if none was given.
    """
    if prefixes == ["networks.0.", "networks.1."]:
        raise ValueError(
            f"{file} holds the two networks of a backbone with streams, but does not record their "
            "parameters; use the file that the pipeline wrote"
        )
    if prefix is not None:
        prefix = _checkpoints.unwrapped(prefix)
        if prefix not in prefixes:
            known = ", ".join(map(repr, prefixes)) or "nothing"
            raise ValueError(f"{file} holds no encoder below {prefix!r}, only below {known}")
        return prefix, ""
    teachers = [start for start in prefixes if TEACHER.search(start)]
    targets = [start for start in prefixes if TARGETS.search(start) and start not in teachers]
    others = [start for start in prefixes if start not in teachers + targets]
    evaluated = others or prefixes
    if teachers:  # which DINO evaluates
        evaluated = _evaluated(teachers, others, teachers, tensors)
    elif targets:
        evaluated = _evaluated(targets, others, evaluated, tensors)
    if len(evaluated) == 1:
        start = evaluated[0]
        rest = " or ".join(repr(other) for other in prefixes if other != start)
        choice = f"the network below {start!r}, not {rest}" if rest else metadata.get(CHOICE, "")
        return start, choice
    held = f"tensors such as {next(iter(tensors))}" if tensors else "no tensors at all"
    remedy = OTHER_NETWORKS
    if evaluated:
        held = f"those below {', '.join(map(repr, evaluated))}"
        remedy = "choose one with --prefix, prefix= or FILE:PREFIX"
    raise ValueError(f"{file} should hold one {expected}, found {held}; {remedy}")
