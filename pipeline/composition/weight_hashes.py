"""The weights that `init` and `start_from` name: files, published weights, experiments; their hashes."""

import hashlib
from pathlib import Path

import torch
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.scm import resolve_rev

from cl.config import parse, read
from cl.encoders import foreign
from cl.encoders.encoder import IMAGENET, transform_in
from cl.encoders.published import fetch, file_and_prefix, is_name, missing, torchvision_url
from cl.networks import backbones
from cl.networks.backbones import RGB
from cl.runtime.registry import module_of
from cl.training.start import ADDED, differing
from pipeline.composition.conf import CONF, Values
from pipeline.support import locations
from pipeline.support.provenance import at, git


def of_init(name: str, key: str = "init", *, exact: bool = False) -> tuple[str, Values]:
    """The hash of the weights of `init`, and what they determine: the backbone, `dataset.mean` and `std`.

    A normalisation that is not recorded is left out.

    Args:
        name: torchvision's or timm's weights, a file, or an experiment; `<file>:<prefix>` chooses one of
            several encoders in a file.
        key: the parameter, `init` or `teacher`.
        exact: refuse an encoder whose features its file does not determine, or our network does not give.
    """
    if name.startswith("torchvision:"):  # known without downloading it
        backbone = {"kind": "resnet", "name": name.split(":")[1], "width": 1, "stem": "imagenet"}
        backbone |= {"zero_init_residual": False, "cosine_stem": False}
        normalisation = {key: list(getattr(IMAGENET, key)) for key in ("mean", "std")}
        digest = Path(torchvision_url(name)).stem.rsplit("-", 1)[1]
        return f"sha256:{digest}", {"backbone": backbone, "dataset": normalisation}
    file = fetch(name)[0] if is_name(name) else file_and_prefix(name)[0]
    if file.is_file():
        digest = sha256(file, name)
        encoder = foreign.load(name, exact=False)
        if exact:
            check_exact(encoder, name, key)
        takes_rgb = encoder.config.channels == RGB and not transform_in(encoder.metadata, name).bands
        if key == "teacher" and not takes_rgb:
            raise ValueError(
                f"teacher={name} takes images of {encoder.config.channels} bands, expected RGB; choose "
                "another teacher"
            )
        backbone = encoder.config.model_dump(mode="json")
        mean, std = (None, None) if encoder.normalisation is None else encoder.normalisation.tolist()
    else:
        known = "torchvision:resnet50, timm:resnet50.a1_in1k, a checkpoint file, or an experiment"
        outputs = _outputs(name, f"{key}={missing(file)}" if file.exists() else f"{key} must be {known}")
        digest = _md5(outputs, locations.BACKBONE, name)
        parent = parse(_at_revision(name, "params.yaml"), f"params.yaml of {name}")
        backbone, (mean, std) = parent["backbone"], (parent["dataset"][key] for key in ("mean", "std"))
    return digest, {
        "backbone": {key: value for key, value in backbone.items() if key != "channels"},
        "dataset": {} if mean is None else {"mean": mean, "std": std},
    }


def check_exact(encoder: foreign.ForeignEncoder, name: str, key: str) -> None:
    """Raises ValueError if our network may not compute what the one of the parameter `key` does."""
    remedy = "hand_over=trained or another" if key == "init" else "another"
    if encoder.doubt:
        raise ValueError(f"{encoder.doubt}; or choose {remedy}")
    if encoder.deviation:
        raise ValueError(f"{key}={name} was trained {encoder.deviation}, unlike our network; choose {remedy}")


def of_teacher(name: str) -> tuple[str, int]:
    """The hash of the weights of `teacher`, and its features per image; raises as `of_init`."""
    digest, found = of_init(name, "teacher", exact=True)
    kind = module_of("networks.backbones", found["backbone"]["kind"]).Config
    with torch.device("meta"):
        return digest, backbones.build(kind.model_validate(found["backbone"])).fc_features


def of_file(name: str) -> str | None:
    """The hash of `<file>:<prefix>`; None for published weights, and for a file that is missing."""
    file, _ = file_and_prefix(name)
    return sha256(file, name) if not is_name(name) and file.is_file() else None


def of_start_from(name: str, composed: Values) -> dict[str, str]:
    """`start_from` with the hashes of the experiment; ValueError unless the run `composed` continues it."""
    outputs = _outputs(name, "start_from must be the name of an experiment, a branch or a commit")
    _check_parameters(name, composed)
    return {
        "name": name,
        "method": _md5(outputs, locations.METHOD, name),
        "optimizer": _md5(outputs, locations.OPTIMIZER, name),
    }


def _check_parameters(name: str, composed: Values) -> None:
    """Raises ValueError if the experiment had other parameters; `pretrain` checks its input again."""
    parents = parse(_at_revision(name, "params.yaml"), f"params.yaml of {name}")
    declared = read(CONF.parents[1] / "dvc.yaml")["stages"]["pretrain"]["params"]
    try:
        ours, theirs = ({key: at(values, key) for key in declared} for values in (composed, ADDED | parents))
        difference = differing(ours, theirs)
    except KeyError as error:
        difference = f"other parameters: one of the two lacks {error}"
    if difference:
        raise ValueError(f"start_from={name} was trained with {difference}")


def sha256(path: Path, name: str) -> str:
    """The hash of the file with these weights, and of timm's config.json beside it unless published."""
    digest, description = locations.file_sha256(path), path.with_name("config.json")
    if description.is_file() and not is_name(name):
        digest = hashlib.sha256(f"{digest} {locations.file_sha256(description)}".encode()).hexdigest()
    return f"sha256:{digest}"


def _outputs(name: str, expected: str) -> dict[str, str]:
    """The outputs of an experiment's pretraining and their MD5 hashes, as recorded in its dvc.lock."""
    try:
        lock = _at_revision(name, "dvc.lock")
    except DvcException:
        missing = "" if Path(name).exists() else f"; nothing is called {name!r}"
        raise ValueError(f"{expected}{missing}") from None
    stages = parse(lock, f"dvc.lock of {name}")["stages"] if lock else {}
    return {output["path"]: output["md5"] for output in stages.get("pretrain", {}).get("outs", [])}


def _at_revision(name: str, file: str) -> str:
    """A file of the project at an experiment, branch or commit; empty if it did not exist."""
    return git("show", f"{resolve_rev(Repo().scm, name)}:./{file}")


def _md5(outputs: dict[str, str], path: Path, name: str) -> str:
    if path.as_posix() not in outputs:
        raise ValueError(f"the dvc.lock of {name} lacks {path}; run that experiment again and commit it")
    return f"md5:{outputs[path.as_posix()]}"
