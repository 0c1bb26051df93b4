"""weights: what `init` or `start_from` name, to models/start.safetensors; an empty file without them."""

import functools
import hashlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.support import command, locations

if TYPE_CHECKING:
    from cl.config import Init
    from cl.training.start import Start

PROJECT = Path(__file__).parents[1]


@click.command()
@command.entry_point
def main() -> None:
    """Fetch the weights that params.yaml names: a checkpoint, torchvision's, or those of an experiment."""
    params = command.params()
    from cl.training import start

    progress = command.progress("weights")
    found = start.Start()
    if params.init:
        found = _backbone(params.init)
    elif params.start_from:
        parent = params.start_from
        method, optimizer = (_cached(md5, parent.name) for md5 in params.start_hashes)
        found = start.from_run(method, optimizer, params.start_hashes)
    if found.tensors:
        progress.say(f"{params.start_name} (licence: {found.origin['licence']})")
    start.save(found, locations.START)


def resolve_init(name: str) -> dict[str, str]:
    """`init` with the hash of its content: torchvision's weights, a file, or an experiment's backbone.

    Args:
        name: `<file>:<prefix>` chooses one of several encoders in a file.

    Raises:
        ValueError: nothing has this name.
    """
    if name.startswith("torchvision:"):
        from cl.hub.published import torchvision_url

        return {"name": name, "hash": f"sha256:{Path(torchvision_url(name)).stem.rsplit('-', 1)[1]}"}
    if name.startswith("timm:"):
        from cl.hub.published import fetch

        return {"name": name, "hash": _sha256(fetch(name)[0])}
    file, _ = _file_and_prefix(name)
    if file.is_file():
        return {"name": name, "hash": _sha256(file)}
    outputs = _outputs(
        name, "init must be torchvision:resnet50, timm:resnet50.a1_in1k, a checkpoint file, or an experiment"
    )
    return {"name": name, "hash": _md5(outputs, locations.BACKBONE, name)}


def _file_and_prefix(name: str) -> tuple[Path, str | None]:
    file, colon, prefix = name.rpartition(":")
    return (Path(file), prefix) if colon and not Path(name).is_file() else (Path(name), None)


def resolve_start(name: str, composed: dict[str, Any]) -> dict[str, str]:
    """`start_from` with the hashes of the experiment's method and optimizer.

    Args:
        composed: the parameters of the run that is to continue it.

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
    """Raises ValueError if the experiment had other parameters; `pretrain` checks what it reads once more."""
    from cl.config import parse, read
    from cl.training.start import differing

    parents = parse(_at_revision(name, "params.yaml"), f"params.yaml of {name}")
    declared = read(PROJECT / "dvc.yaml")["stages"]["pretrain"]["params"]

    def relevant(values: dict[str, Any]) -> dict[str, Any]:
        return {key: functools.reduce(lambda x, part: x[part], key.split("."), values) for key in declared}

    try:
        difference = differing(relevant(composed), relevant(parents))
    except KeyError as error:
        difference = f"other parameters: one of the two lacks {error}"
    if difference:
        raise ValueError(f"start_from={name} was trained with {difference}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _outputs(name: str, expected: str) -> dict[str, str]:
    """The outputs of an experiment's pretraining and their MD5 hashes, as recorded in its dvc.lock."""
    from dvc.exceptions import DvcException

    from cl.config import parse

    try:
        lock = _at_revision(name, "dvc.lock")
    except DvcException:
        raise ValueError(f"{expected}; nothing is called {name!r}") from None
    stages = parse(lock, f"dvc.lock of {name}")["stages"] if lock else {}
    return {output["path"]: output["md5"] for output in stages.get("pretrain", {}).get("outs", [])}


def _at_revision(name: str, file: str) -> str:
    """A file of the project at an experiment, branch or commit; empty if it did not exist."""
    from dvc.repo import Repo
    from dvc.scm import resolve_rev

    commit = resolve_rev(Repo().scm, name)
    return subprocess.run(["git", "show", f"{commit}:./{file}"], capture_output=True, text=True).stdout


def _md5(outputs: dict[str, str], path: Path, name: str) -> str:
    if path.as_posix() not in outputs:
        raise ValueError(f"{name} has no {path} in its dvc.lock; run that experiment again and commit it")
    return f"md5:{outputs[path.as_posix()]}"


def _backbone(init: "Init") -> "Start":
    from cl.hub import foreign
    from cl.runtime.tensor_files import load_tensors
    from cl.training import start

    if init.hash.startswith("md5:"):
        tensors, metadata = load_tensors(_cached(init.hash, init.name))
        encoder = foreign.recognise(tensors, metadata, init.name)
    else:
        file, prefix = _checked_file(init)
        encoder = foreign.load(file, prefix)
    if encoder.deviation:
        command.progress("weights").say(f"{init.name} was trained {encoder.deviation}; ours is not")
    origin = {"hashes": [init.hash], "licence": start.licence(encoder.metadata)}
    return start.from_backbone(encoder.network, encoder.config, origin)


def _checked_file(init: "Init") -> tuple[str, str | None]:
    """The file and prefix of `init`; raises ValueError unless its hash is the one in params.yaml."""
    from cl.hub import published

    if init.name.startswith("torchvision:"):  # `published` checks the hash
        return init.name, None
    is_name = published.is_name(init.name)
    file, prefix = (published.fetch(init.name)[0], None) if is_name else _file_and_prefix(init.name)
    if not file.is_file():
        raise ValueError(
            f"init={file} does not exist; a run in a temporary copy of the project needs an absolute path"
        )
    if _sha256(file) != init.hash:
        raise ValueError(f"init={file} has changed since params.yaml was composed: compose it again")
    return init.name if is_name else str(file), prefix


def _cached(md5: str, name: str) -> Path:
    """The file with this hash in DVC's cache; from DVC's remote, if it is missing."""
    from dvc.repo import Repo
    from dvc_data.hashfile.hash_info import HashInfo

    repo, digits = Repo(), md5.removeprefix("md5:")
    path = Path(repo.cache.local.oid_to_path(digits))
    reason = ""
    if not path.is_file():
        try:
            repo.cloud.pull([HashInfo("md5", digits)])
        except Exception as error:  # no remote, or one that raises errors of any type
            reason = f" ({error})"
    if not path.is_file():
        raise ValueError(
            f"the weights of {name} are neither in DVC's cache nor in its remote{reason}: run `dvc push` or "
            "`dvc exp push` where that experiment ran"
        )
    return path


if __name__ == "__main__":
    main()
