"""Runs of stages: each has a folder of checkpoints in CL_SCRATCH, from which it continues if interrupted."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import click

from cl.runtime import files, machine
from cl.training.checkpoints import Checkpoints
from pipeline.support import command, locations, provenance

CODE = "code.json"  # hashes of the code that saved the checkpoints, and the files that changed during the run
PRECISION = "precision"  # what `auto` became; beside the files
SHOWN = 5  # changed files in the error message


@dataclass(frozen=True)
class Run:
    """A run, which no other process can continue at the same time, and notes for its provenance.

    seconds: between checkpoints.
    """

    folder: Path
    seconds: float
    notes: dict[str, Any] = field(default_factory=dict)

    def checkpoints(self, *part: str) -> Checkpoints:
        """The checkpoints of a part of the stage."""
        return Checkpoints(self.folder / "-".join(part), self.seconds)


@contextmanager
def begin(stage: str, name: str | None = None, *, data: str = "", encoder: str = "") -> Iterator[Run]:
    """A new run of the stage, or an interrupted one; on success, its checkpoints are removed.

    ValueError if another process continues this run, or other code saved its checkpoints. `data`, `encoder`:
    hashes of what it reads beside its inputs.
    """
    dependencies, parameters = provenance.declared(stage, name)
    code = [path for path in dependencies if path.parts[0] in ("cl", "pipeline")]
    inputs = [path for path in dependencies if path not in code]
    if encoder:
        inputs = [path for path in inputs if path not in (locations.BACKBONE, locations.METHOD)]
    if stage == "baseline":  # experiments in other copies may train the same baseline at the same time
        whole = provenance.params() | {"overrides": []}  # a temporary copy has another name each time
        data += json.dumps(whole, sort_keys=True) if locations.is_temporary_copy() else str(Path.cwd())
    key = run_key(f"{stage}@{name}", parameters, inputs, data + encoder)
    root = locations.scratch()
    seconds = locations.number_from_environment("CL_CHECKPOINT_SECONDS", 60, "seconds")
    run = Run(root / key, seconds)
    if not command.is_main_process():
        yield run
        return
    if locations.is_temporary_copy() and not root.is_absolute():
        click.echo(
            f"{stage}: this copy of the project is temporary; "
            "set CL_SCRATCH to an absolute folder to make it resumable"
        )
    with _exclusive(run.folder):
        run.notes["run_key"] = key
        precision = machine.decided(parameters.get("precision", "fp32"))
        if changed := _check_code(run.folder, code, precision):
            run.notes["code_changed_during_run"] = changed
        yield run


def run_key(stage: str, parameters: dict[str, Any], inputs: list[Path], more: str = "") -> str:
    """A hash of everything that a run depends on, except its code: parameters, images, models and `more`."""
    sha = hashlib.sha256(json.dumps([stage, parameters, more], sort_keys=True).encode())
    for path in inputs:
        if path == locations.SHARDS:
            sha.update(f"\0{path}\0{locations.manifest_hash()}".encode())
            columns = (path.glob(f"*_{name}.npy") for name in ("groups", "positive", "within"))
            for column in sorted(chain(*columns)):  # the manifest only counts their values
                sha.update(f"\0{column}\0{locations.file_sha256(column)}".encode())
        elif path.is_file():
            sha.update(f"\0{path}\0{locations.file_sha256(path)}".encode())
    return sha.hexdigest()[:16]


def _check_code(folder: Path, paths: list[Path], precision: str) -> list[str]:
    """Record the code that saves the next checkpoints; returns the files that changed during the run.

    Refuses files changed since the last checkpoint unless CL_CODE_CHANGED allows them. Another precision, on
    another machine, is said and counts as a change.
    """
    sources = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    code = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(sources)}
    code[PRECISION] = precision
    is_resumed = any(folder.rglob("step-*.safetensors"))
    before: Any = json.loads((folder / CODE).read_text()) if is_resumed else {"files": code, "changed": []}
    earlier = before["files"].setdefault(PRECISION, precision)
    changed = sorted(dict(before["files"].items() ^ code.items()))
    edited = [each for each in changed if each != PRECISION]
    if edited and os.environ.get("CL_CODE_CHANGED") != "continue":
        more = f" and {len(edited) - SHOWN} more files" if len(edited) > SHOWN else ""
        raise ValueError(
            f"this run's checkpoints were saved by other code ({', '.join(edited[:SHOWN])}{more} changed): "
            f"set CL_CODE_CHANGED=continue to continue with the new code, or `rm -r {folder}` to start over"
        )
    if earlier != precision:
        click.echo(f"precision=auto was {earlier} so far, and is {precision} on this machine")
    changed = sorted({*before["changed"], *changed})
    with files.finished(folder / CODE) as partial:
        partial.write_text(json.dumps({"files": code, "changed": changed}))
    return changed


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder; remove it on success, or if it contains no checkpoints."""
    with files.exclusive(folder, folder):
        try:
            yield
            files.clear(folder)
        finally:
            if {path.name for path in folder.glob("*")} <= {files.LOCK, CODE, locations.KEPT.name}:
                files.clear(folder)
