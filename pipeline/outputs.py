"""Outputs of stages: which stage makes what another one lacks, and how to get back what DVC has removed."""

import os
import subprocess
from pathlib import Path
from typing import Any

from pipeline import locations, provenance


def require_inputs(stage: str, name: str | None = None, *, models: bool = True) -> None:
    """Check that a stage finds the outputs of other stages that it reads; see `require`.

    Args:
        models: whether it reads the pretrained models.
    """
    unread = [] if models else [locations.BACKBONE, locations.METHOD]
    if os.environ.get("CL_SHARDS"):
        unread.append(locations.SHARDS)
    require(*(path for path in provenance.declared(stage, name)[0] if path not in unread))


def require(*paths: Path) -> None:
    """Check that these outputs exist.

    Raises:
        ValueError: one is missing; the message says how to get it.
    """
    for path in paths:
        if not path.exists() and (maker := _maker(path)):
            raise ValueError(f"{path} is missing{_how_to_get(path, maker)}")


def _maker(path: Path) -> str | None:
    """The stage that has this output."""
    from cl.config import read

    for stage, declaration in read(Path("dvc.yaml"))["stages"].items():
        if path.as_posix() in declaration.get("outs", []):
            return str(stage)
    return None


def _how_to_get(path: Path, maker: str) -> str:
    from dvc.repo import Repo

    from cl.config import parse

    lock = Path("dvc.lock")
    stages: dict[str, Any] = parse(lock.read_text(), str(lock))["stages"] if lock.is_file() else {}
    hashes = {output["path"]: output["md5"] for output in stages.get(maker, {}).get("outs", [])}
    if (md5 := hashes.get(path.as_posix())) and Path(Repo().cache.local.oid_to_path(md5)).is_file():
        return f", but DVC's cache has it: run `dvc checkout {path}`"
    return f": run `dvc repro {maker}`"


def way_back() -> str | None:
    """How to get back what DVC removed before it ran this stage, if an earlier run is committed."""
    stage = os.environ.get("DVC_STAGE")
    if not stage or locations.is_temporary_copy():
        return None
    committed = subprocess.run(["git", "show", "HEAD:./dvc.lock"], capture_output=True, text=True).stdout
    if f"\n  {stage}:\n" not in committed:
        return None
    return f"{stage}: `git checkout params.yaml dvc.lock && dvc checkout` brings back the committed outputs"
