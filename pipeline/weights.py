"""weights: those of `init` or `start_from`, to models/start.safetensors, and of `teacher`; or none."""

import json
from pathlib import Path

import click
from dvc.repo import Repo
from dvc_data.hashfile.hash_info import HashInfo
from torch import Tensor

from cl.config import Init
from cl.encoders import foreign, published
from cl.encoders.encoder import transform_in, transform_of
from cl.runtime.tensor_files import licence, save_tensors
from cl.training import start
from cl.training.start import Start
from pipeline.composition.weight_hashes import check_exact, sha256
from pipeline.support import command, locations, provenance


@click.command()
@command.entry_point
def main() -> None:
    """Fetch the weights that params.yaml names: a checkpoint's, torchvision's or an experiment's."""
    params = command.params()
    progress = command.progress("weights")
    weights = Start()
    if params.init:
        weights = _backbone(params.init, exact=params.hand_over == "better")
    elif params.start_from:
        parent = params.start_from
        method, optimizer = (_cached(md5, parent.name) for md5 in params.start_hashes)
        weights = start.from_run(method, optimizer, params.start_hashes)
    if weights.tensors:
        progress.say(f"{params.start_name} (licence: {weights.origin['licence']})")
    tensors, metadata = _teacher(params.teacher) if params.teacher else ({}, {})
    provenance.check_unchanged("weights")
    start.save(weights, locations.START)
    save_tensors(tensors, locations.TEACHER, metadata)


def _backbone(init: Init, *, exact: bool) -> Start:
    file, prefix = _checked_file(init)
    name = init.name if init.hash.startswith("md5:") else file
    encoder = foreign.load(file, prefix, exact=False, name=name)
    if exact:
        check_exact(encoder, init.name, "init")
    elif encoder.deviation:
        command.progress("weights").say(f"{init.name} was trained {encoder.deviation}; ours is not")
    bands = transform_in(encoder.metadata, name).bands
    names = bands.names if bands else ()
    origin = {"hashes": [init.hash], "licence": licence(encoder.metadata), "bands": names}
    return start.from_backbone(encoder.network, encoder.config, origin)


def _teacher(teacher: Init) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Its tensors; and its architecture, transform, name, hash and licence, for `cl.load` too."""
    file, prefix = _checked_file(teacher, "teacher")
    encoder = foreign.load(file, prefix, exact=False, name=teacher.name)
    check_exact(encoder, teacher.name, "teacher")
    transform = transform_of(encoder, teacher.name)
    origin = {"name": teacher.name, "hash": teacher.hash, "licence": licence(encoder.metadata)}
    said = f"teacher {teacher.name}, at {transform.crop} px (licence: {origin['licence']})"
    command.progress("weights").say(said)
    return encoder.network.state_dict(), {
        "network": encoder.config.model_dump_json(),
        "transform": transform.model_dump_json(),
        "licence": origin["licence"],
        "origin": json.dumps(origin),
    }


def _checked_file(init: Init, key: str = "init") -> tuple[str, str | None]:
    """The file and prefix of the parameter `key`; raises ValueError if its hash differs from params.yaml."""
    if init.hash.startswith("md5:"):  # of an experiment
        return str(_cached(init.hash, init.name)), None
    if init.name.startswith("torchvision:"):  # `published` checks the hash
        return init.name, None
    is_name = published.is_name(init.name)
    file, prefix = (published.fetch(init.name)[0], None) if is_name else published.file_and_prefix(init.name)
    if not file.is_file():
        raise ValueError(f"{key}={file} does not exist; a temporary copy of the project needs a full path")
    if sha256(file, init.name) != init.hash:
        raise ValueError(f"{key}={file} has changed since params.yaml was composed: compose it again")
    return init.name if is_name else str(file), prefix


def _cached(md5: str, name: str) -> Path:
    """The file with this hash in DVC's cache, pulled from DVC's remote if necessary."""
    repo, digits = Repo(), md5.removeprefix("md5:")
    path = Path(repo.cache.local.oid_to_path(digits))
    reason = ""
    if not path.is_file():
        try:
            repo.cloud.pull([HashInfo("md5", digits)])
        except Exception as error:  # no remote, or an error of any type from its library
            reason = f" ({error})"
    if not path.is_file():
        raise ValueError(
            f"the weights of {name} are neither in DVC's cache nor in its remote{reason}: run `dvc push` or "
            "`dvc exp push` where that experiment ran"
        )
    return path


if __name__ == "__main__":
    main()
