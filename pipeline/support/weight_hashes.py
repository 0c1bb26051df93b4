"""The weights that `init` and `start_from` name: files, published weights, experiments; their hashes."""

from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.scm import resolve_rev

from cl.config import parse, read
from cl.encoders import foreign
from cl.encoders.encoder import IMAGENET
from cl.encoders.published import fetch, is_name, missing, torchvision_url
from cl.training.start import differing
from pipeline.support import locations
from pipeline.support.provenance import at, git

PROJECT = Path(__file__).parents[2]


def resolve_init(name: str) -> dict[str, str]:
    """`init` with the hash of its content: torchvision's weights, a file, or an experiment's backbone.

    Args:
        name: `<file>:<prefix>` chooses one of several encoders in a file.

    Raises:
        ValueError: neither weights nor an experiment have this name.
    """
    if name.startswith("torchvision:"):
        return {"name": name, "hash": f"sha256:{Path(torchvision_url(name)).stem.rsplit('-', 1)[1]}"}
    if name.startswith("timm:"):
        return {"name": name, "hash": sha256(fetch(name)[0])}
    file, _ = file_and_prefix(name)
    if file.is_file():
        return {"name": name, "hash": sha256(file)}
    expected = "init must be torchvision:resnet50, timm:resnet50.a1_in1k, a checkpoint file, or an experiment"
    outputs = _outputs(name, f"init={missing(file)}" if file.exists() else expected)
    return {"name": name, "hash": _md5(outputs, locations.BACKBONE, name)}


def described(name: str) -> dict[str, Any]:
    """The parameters that the weights of `init` determine: their backbone, and `dataset.mean` and `std`.

    An image size that the network may choose is left out, as is a normalisation that is not recorded.

    Raises:
        ValueError: `cl.encoders.foreign.load` refuses the file.
    """
    if name.startswith("torchvision:"):  # known without downloading it
        network = {"kind": "resnet", "name": name.split(":")[1], "width": 1, "stem": "imagenet"}
        return {
            "backbone": network | {"zero_init_residual": False, "cosine_stem": False},
            "dataset": {key: list(getattr(IMAGENET, key)) for key in ("mean", "std")},
        }
    file, prefix = (Path(name), None) if is_name(name) else file_and_prefix(name)
    if not (is_name(name) or file.is_file()):
        parent = parse(_at_revision(name, "params.yaml"), f"params.yaml of {name}")
        backbone, (mean, std) = parent["backbone"], (parent["dataset"][key] for key in ("mean", "std"))
    else:
        encoder = foreign.load(str(file), prefix, exact=False)
        backbone = encoder.config.model_dump(mode="json")
        recorded = encoder.normalisation
        mean, std = (None, None) if recorded is None else recorded.tolist()
    return {
        "backbone": {key: value for key, value in backbone.items() if key != "size"},
        "dataset": {} if mean is None else {"mean": mean, "std": std},
    }


def file_and_prefix(name: str) -> tuple[Path, str | None]:
    """The file and the prefix of `<file>:<prefix>`; None without one."""
    whole = Path(name).expanduser()
    file, colon, prefix = str(whole).rpartition(":")
    return (Path(file), prefix) if colon and not whole.is_file() else (whole, None)


def resolve_start(name: str, composed: dict[str, Any]) -> dict[str, str]:
    """`start_from` with the hashes of the experiment's method and optimizer.

    Args:
        composed: the parameters of the run that continues the experiment.

    Raises:
        ValueError: no experiment has this name, it lacks these files, or it had other parameters.
    """
    outputs = _outputs(name, "start_from must be the name of an experiment, a branch or a commit")
    _check_parameters(name, composed)
    return {
        "name": name,
        "method": _md5(outputs, locations.METHOD, name),
        "optimizer": _md5(outputs, locations.OPTIMIZER, name),
    }


def _check_parameters(name: str, composed: dict[str, Any]) -> None:
    """Raises ValueError if the experiment had other parameters; `pretrain` checks its input again."""
    parents = parse(_at_revision(name, "params.yaml"), f"params.yaml of {name}")
    declared = read(PROJECT / "dvc.yaml")["stages"]["pretrain"]["params"]
    try:
        ours, theirs = ({key: at(values, key) for key in declared} for values in (composed, parents))
        difference = differing(ours, theirs)
    except KeyError as error:
        difference = f"other parameters: one of the two lacks {error}"
    if difference:
        raise ValueError(f"start_from={name} was trained with {difference}")


def sha256(path: Path) -> str:
    """The hash of a file, as params.yaml records it."""
    return f"sha256:{locations.file_sha256(path)}"


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
