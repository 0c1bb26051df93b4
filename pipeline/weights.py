"""weights: what `init` or `start_from` name, to models/start.safetensors; an empty file without them."""

import contextlib
import hashlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline import command, locations

if TYPE_CHECKING:
    from cl.config import Init
    from cl.training.start import Start


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
        method, optimizer = (_cached(md5, parent.name) for md5 in (parent.method, parent.optimizer))
        found = start.from_run(method, optimizer, parent.model_dump())
    if found.tensors:
        progress.say(f"{found.origin['name']} (licence: {found.origin['licence']})")
    start.save(found, locations.START)


def resolve_init(name: str) -> dict[str, str]:
    """`init` with the hash of its content: torchvision's weights, a file, or an experiment's backbone.

    Raises:
        ValueError: nothing has this name.
    """
    if name.startswith("torchvision:"):
        from cl.exchange.foreign import torchvision_url

        return {"name": name, "hash": f"sha256:{Path(torchvision_url(name)).stem.rsplit('-', 1)[1]}"}
    if Path(name).is_file():
        return {"name": name, "hash": _sha256(Path(name))}
    outputs = _outputs(name, "init must be torchvision:resnet50, a checkpoint file, or an experiment")
    return {"name": name, "hash": _md5(outputs, locations.BACKBONE, name)}


def resolve_start(name: str) -> dict[str, str]:
    """`start_from` with the hashes of the experiment's method and optimizer.

    Raises:
        ValueError: no experiment has this name, or it lacks these files.
    """
    outputs = _outputs(name, "start_from must be the name of an experiment, a branch or a commit")
    return {
        "name": name,
        "method": _md5(outputs, locations.METHOD, name),
        "optimizer": _md5(outputs, locations.OPTIMIZER, name),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _outputs(name: str, expected: str) -> dict[str, str]:
    """The outputs of an experiment's pretraining and their MD5 hashes, as its dvc.lock has them."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc.scm import resolve_rev

    from cl.config import parse

    try:
        commit = resolve_rev(Repo().scm, name)
    except DvcException:
        raise ValueError(f"{expected}; nothing is called {name!r}") from None
    lock = subprocess.run(["git", "show", f"{commit}:./dvc.lock"], capture_output=True, text=True)
    stages = parse(lock.stdout, f"dvc.lock of {name}")["stages"] if lock.returncode == 0 else {}
    return {output["path"]: output["md5"] for output in stages.get("pretrain", {}).get("outs", [])}


def _md5(outputs: dict[str, str], path: Path, name: str) -> str:
    if path.as_posix() not in outputs:
        raise ValueError(f"{name} has no {path} in its dvc.lock; run that experiment again and commit it")
    return f"md5:{outputs[path.as_posix()]}"


def _backbone(init: "Init") -> "Start":
    from cl.exchange import foreign
    from cl.runtime.tensor_files import load_tensors
    from cl.training import start

    metadata: dict[str, str] = {}
    if init.hash.startswith("md5:"):
        tensors, metadata = load_tensors(_cached(init.hash, init.name))
        encoder = foreign.recognise(tensors, metadata, init.name)
    else:
        _check_file(init)
        encoder = foreign.load(init.name)
    origin = {**init.model_dump(), "licence": start.licence(metadata)}
    return start.from_backbone(encoder.network, encoder.config, origin)


def _check_file(init: "Init") -> None:
    """Raises ValueError unless the file is there, with the hash that params.yaml has."""
    file = Path(init.name)
    if init.name.startswith("torchvision:"):  # which checks the hash itself
        return
    if not file.is_file():
        raise ValueError(
            f"init={file} does not exist; a run in a temporary copy of the project needs an absolute path"
        )
    if _sha256(file) != init.hash:
        raise ValueError(f"init={file} has changed since params.yaml was composed: compose it again")


def _cached(md5: str, name: str) -> Path:
    """The file with this hash in DVC's cache; from DVC's remote, if it is missing."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc_data.hashfile.hash_info import HashInfo

    repo, digits = Repo(), md5.removeprefix("md5:")
    path = Path(repo.cache.local.oid_to_path(digits))
    if not path.is_file():
        with contextlib.suppress(DvcException):  # without a remote
            repo.cloud.pull([HashInfo("md5", digits)])
    if not path.is_file():
        raise ValueError(
            f"the weights of {name} are neither in DVC's cache nor in its remote: run `dvc push` or "
            "`dvc exp push` where that experiment ran"
        )
    return path


if __name__ == "__main__":
    main()
