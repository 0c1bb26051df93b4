"""The provenance of a stage's result: parameters, data, code, hardware, time."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from cl.config import read
from cl.runtime import machine
from pipeline.support.locations import BACKBONE, METHOD, SHARDS, file_sha256, manifest_hash

PARAMS = Path("params.yaml")
RECORDED = (":!dvc.lock", ":!params.yaml", ":!docs/results")  # not code: recorded elsewhere, or results
NEW = ("cl/*.py", "pipeline/*.py", "pipeline/conf/*.yaml")  # code even before `git add`
VERSIONS = (
    "torch", "torchvision", "timm", "numpy", "pillow", "webdataset", "dvc", "pycocotools", "detectron2",
)  # fmt: skip

loaded: dict[str, Any] = {}  # `params.yaml` as this stage has read it; see `params`


def params() -> dict[str, Any]:
    """The content of `params.yaml`; in a stage that of its start, as another run may write the file."""
    return loaded or read(PARAMS)


def check_unchanged(stage: str, name: str | None = None) -> None:
    """Raises ValueError if the file, which DVC records, no longer has the parameters that the stage used."""
    used, now = declared(stage, name)[1], declared(stage, name, read(PARAMS))[1]
    if changed := [key for key in used if used[key] != now[key]]:
        raise ValueError(
            f"{PARAMS} was changed while this stage ran ({', '.join(changed)}), so no result is written: "
            "restore it and start this run again; training resumes"
        )


def declared(
    stage: str, name: str | None = None, values: dict[str, Any] | None = None
) -> tuple[list[Path], dict[str, Any]]:
    """The dependencies and parameters that `dvc.yaml` declares for a stage, from `values` or `params`."""
    values = values or params()
    template = read(Path("dvc.yaml"))["stages"][stage]
    declaration = template.get("do", template)
    group = values[template["foreach"][2:-1]] if name else {}
    if name and name not in group:
        raise ValueError(f"params.yaml has no {stage} {name!r} any more: another run wrote it; start again")
    extra = {"key": name, "item": group[name]} if name else {}

    def fill(text: str) -> str:
        return re.sub(r"\$\{([\w.]+)\}", lambda match: str(at(values | extra, match[1])), text)

    dependencies = [Path(fill(path)) for path in declaration["deps"]]
    names = [fill(parameter) for parameter in declaration["params"]]
    return dependencies, {parameter: at(values, parameter) for parameter in names}


def require_inputs(stage: str, name: str | None = None, *, models: bool = True) -> None:
    """Check that the outputs that a stage reads exist; those of pretraining only with `models`."""
    unread = [] if models else [BACKBONE, METHOD]
    require(*(path for path in declared(stage, name)[0] if path not in unread))


def require(*paths: Path) -> None:
    """Raises ValueError if one of these outputs is missing; the message says how to get it."""
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"{path} is missing: run `dvc repro`, or `dvc checkout {path}` if it was made before"
            )


def at(values: dict[str, Any], path: str) -> Any:
    """The value of a parameter with a dotted name."""
    return functools.reduce(lambda value, key: value[key], path.split("."), values)


def command(overrides: list[str], *options: str) -> str:
    """The `dvc exp run` with these overrides, ready to paste into a shell."""
    return " ".join(["dvc exp run", *options, *(f"-S {shlex.quote(override)}" for override in overrides)])


def record(stage: str, name: str | None, used: dict[str, float]) -> dict[str, Any]:
    """How a result was made: parameters, data, code, hardware, and what was `used`; null if unknown."""
    files, values = declared(stage, name)
    everything, (commit, changed) = params(), code()
    data = manifest_hash() if SHARDS in files else None
    if stage == "prepare":
        data = file_sha256(SHARDS / "manifest.json")
    return {
        "stage": stage + (f"@{name}" if name else ""),
        "recipe": everything["recipe"],
        "seed": everything["seed"],
        "parameters": values,
        "data_manifest_sha256": data,
        "commit": commit,
        "uncommitted_changes": changed,
        "versions": versions(),
        "hardware": _hardware(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(used["seconds"], 1),
        "images_seen": round(used["images"]) or None,
    }


def code() -> tuple[str | None, bool | None]:
    """The commit, and whether code has uncommitted changes; None outside a repository."""
    commit = git("rev-parse", "HEAD") or None
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", *RECORDED)
    changes += git("ls-files", "--others", "--exclude-standard", "--", *NEW)
    return commit, bool(changes) if commit else None


def git(*arguments: str) -> str:
    """The output of git, stripped; empty if it fails."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def versions() -> dict[str, str]:
    """The versions of Python, of the packages that decide results, and of the GPU's software."""
    versions: dict[str, Any] = {"python": platform.python_version()}
    for package in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    if machine.gpus():
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = torch.backends.cudnn.version()
        versions["driver"] = machine.driver_version()
    return {name: str(version) for name, version in versions.items() if version}


def _hardware() -> dict[str, Any]:
    gpus, info = range(machine.gpus()), Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(gpu) for gpu in gpus],
        "fused": bool(gpus) and machine.fused_kernels(),
        "system": platform.platform(),
    }
