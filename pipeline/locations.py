"""Where stages find their data, and the models they hand on."""

import hashlib
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cl.data.cache import Cache
    from cl.data.reader import Reader
    from cl.detection.config import Config as Transfer

SHARDS, SCENES = Path("data/shards"), Path("data/scenes")
BACKBONE, METHOD = Path("models/backbone.safetensors"), Path("models/method.safetensors")


def raw() -> Path:
    """Where the raw data sets lie."""
    return Path(os.environ.get("CL_RAW", "data/raw"))


def missing(transfers: "dict[str, Transfer]") -> Iterator[str]:
    """What the transfers will need and is not here yet, in sentences."""
    for name, transfer in transfers.items():
        if transfer.engine == "detectron2" and find_spec("detectron2") is None:
            yield f"transfers.{name} will need detectron2, which is not installed here: make detectron2"
        folder = raw() / ("VOCdevkit" if transfer.kind == "voc" else "coco")
        if transfer.data == "raw" and not folder.is_dir():
            yield f"transfers.{name} will need {folder}, which is not there yet"


def reader(split: str) -> "Reader":
    """The images of one split: those of data/shards, or of the folder or URL that CL_SHARDS names."""
    from cl.data.reader import Reader

    manifest()
    return Reader(_place(), split, _cache())


def manifest() -> bytes:
    """The manifest of the shards that `reader` reads."""
    from cl.data.reader import folder_at

    found, own = folder_at(_place(), _cache()).manifest, SHARDS / "manifest.json"
    if own.is_file() and own.read_bytes() != found:
        raise ValueError(
            f"CL_SHARDS={_place()} holds other shards than {SHARDS}, which DVC takes for the data of this run: "
            f"unset CL_SHARDS, or remove {SHARDS}"
        )
    return found


def _place() -> str:
    return os.environ.get("CL_SHARDS") or str(SHARDS)


def _cache() -> "Cache":
    from cl.data.cache import Cache

    gigabytes = os.environ.get("CL_CACHE_GB", "20")
    if not re.fullmatch(r"\d*\.?\d+", gigabytes):
        raise ValueError(f"CL_CACHE_GB={gigabytes}: give a number of gigabytes, such as 20")
    return Cache(Path(os.environ.get("CL_CACHE", "scratch/cache")), round(float(gigabytes) * 1e9))


def manifest_hash() -> str:
    """The hash that stands for all images that `reader` reads."""
    return hashlib.sha256(manifest()).hexdigest()
