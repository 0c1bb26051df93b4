"""What a stage's result depends on and where it comes from: parameters, data, code, versions, hardware, time, energy."""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline import energy
from pipeline.locations import BACKBONE, METHOD, SHARDS, manifest

RECORDED = (":!dvc.lock", ":!params.yaml")  # changes of these are no change of code, and are on record anyway
VERSIONS = ("torch", "torchvision", "numpy", "pillow", "webdataset", "dvc", "pycocotools")
OPTIONAL = ("detectron2",)  # told where it is installed


def declared(stage: str, name: str | None = None) -> tuple[list[Path], dict[str, Any]]:
    """The dependencies and parameters that `dvc.yaml` declares for a stage, with the values of `params.yaml` filled in."""
    from cl.config import read

    values, stages = read(Path("params.yaml")), read(Path("dvc.yaml"))["stages"]
    declaration = stages[stage].get("do", stages[stage])
    extra = {"key": name, "item": values[stages[stage]["foreach"][2:-1]][name]} if name else {}

    def fill(text: str) -> str:
        return re.sub(r"\$\{([\w.]+)\}", lambda match: str(_at(values | extra, match[1])), text)

    names = [fill(parameter) for parameter in declaration["params"]]
    return [Path(fill(path)) for path in declaration["deps"]], {
        parameter: _at(values, parameter) for parameter in names
    }


def _at(values: dict[str, Any], path: str) -> Any:
    return functools.reduce(lambda value, key: value[key], path.split("."), values)


def identity(stage: str, name: str | None = None, instead: str = "") -> str:
    """A hash of all that a stage's result depends on: declared parameters, code, and data through its manifest.

    Args:
        instead: a hash of what takes the place of the pretrained models.
    """
    files, values = declared(stage, name)
    sha = hashlib.sha256(json.dumps(values, sort_keys=True).encode() + instead.encode())
    for path in [path for path in files if not (instead and path in (BACKBONE, METHOD))]:
        if path == SHARDS:
            sha.update(f"\0{path / 'manifest.json'}\0".encode() + manifest())
            continue
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if not file.is_file():
                raise ValueError(f"no {file}: run `dvc repro` first, which makes what this stage needs")
            sha.update(f"\0{file}\0".encode() + file.read_bytes())
    return sha.hexdigest()[:16]


def record(stage: str, name: str | None, used: dict[str, float]) -> dict[str, Any]:
    """Where a result comes from: parameters, data, code, versions, hardware, time, energy; null is what is not known.

    Args:
        used: seconds, images trained on and, where the machine tells, joules, as `cl.progress.Usage` counts them. They include
            earlier sessions of trainings that went on from a checkpoint, up to it.
    """
    from cl.config import read

    files, values = declared(stage, name)
    everything, commit = read(Path("params.yaml")), _git("rev-parse", "HEAD") or None
    data = (
        (SHARDS / "manifest.json").read_bytes()
        if stage == "prepare"
        else manifest()
        if SHARDS in files
        else None
    )
    return {
        "stage": stage + (f"@{name}" if name else ""),
        "recipe": everything["recipe"],
        "seed": everything["seed"],
        "parameters": values,
        "parameters_sha256": hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest(),
        "data_manifest_sha256": data and hashlib.sha256(data).hexdigest(),
        "commit": commit,
        "uncommitted_changes": commit
        and bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *RECORDED)),
        "versions": _versions(),
        "hardware": _hardware(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(used["seconds"], 1),
        "images_seen": round(used["images"]) or None,
        "energy_joules": _energy(used),
    }


def _energy(used: dict[str, float]) -> dict[str, float | None] | None:
    joules = {"gpus": used.get("gpu_joules"), "cpus": used.get("cpu_joules")}
    return (
        {device: round(value, 1) if value else None for device, value in joules.items()}
        if any(joules.values())
        else None
    )


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _versions() -> dict[str, str]:
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(),
        **{v: importlib.metadata.version(v) for v in VERSIONS},
    }
    for package in OPTIONAL:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    if torch.cuda.is_available():
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": energy.driver(),
        }
    return {name: str(version) for name, version in found.items() if version}


def _hardware() -> dict[str, Any]:
    import torch

    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return {
        "cpu": cpu,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "system": platform.platform(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
