"""The places of the stages' data and models."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from cl.config import Params, for_few_images
from cl.data.cache import Cache
from cl.data.reader import Reader, manifest
from cl.data.transform import Transform
from cl.detection.config import Config as Transfer
from cl.networks.backbones import RGB
from cl.runtime.stores import is_url, path_of
from cl.sources import Source

SHARDS, SCENES = Path("data/shards"), Path("data/scenes")
BACKBONE, METHOD = Path("models/backbone.safetensors"), Path("models/method.safetensors")
START, OPTIMIZER = Path("models/start.safetensors"), Path("models/optimizer.safetensors")
TEACHER = Path("models/teacher.safetensors")
PREPARED = Path("results/prepare.provenance.json")
KEPT = Path("results/pretrain/methods")  # after earlier epochs: <epoch>.safetensors
AFTER_PREPARING = {"resize", "crop", "mean", "std", "show"}  # data set parameters that `prepare` ignores


def kept_methods(folder: Path = KEPT) -> dict[int, Path]:
    """The files of the method after earlier epochs, by epoch."""
    return {int(path.stem): path for path in folder.glob("*.safetensors")}


def is_temporary_copy() -> bool:
    """Whether DVC created this copy of the project for one run (`--temp`, `--queue`) and will remove it."""
    return ".dvc/tmp/exps" in Path.cwd().as_posix()


def scratch() -> Path:
    """The folder of checkpoints and other working files."""
    return Path(os.environ.get("CL_SCRATCH") or "scratch")


def raw() -> Path:
    """The folder or URL of the raw data sets; a relative path starts at the project, not at its copy."""
    folder = path_of(os.environ.get("CL_RAW") or "data/raw")
    if is_temporary_copy() and not is_url(folder) and not folder.is_absolute():
        return Path(str(Path.cwd()).partition("/.dvc/tmp/exps")[0]) / folder
    return folder


def raw_folder() -> Path:
    """The folder of the raw data sets, for readers that do not support URLs."""
    if is_url(folder := raw()):
        raise ValueError(f"CL_RAW={folder}, but detection data is read from this machine; set it to a folder")
    return folder


def table_sha256(dataset: Source) -> str | None:
    """The hash of the table that lists the images; None without a table, or if it is not on this machine."""
    table = dataset.table_path(raw())
    return file_sha256(table) if table and table.is_file() else None


def file_sha256(path: Path) -> str:
    """The SHA-256 hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing(transfers: dict[str, Transfer]) -> Iterator[str]:
    """One line for each package or folder that a transfer will need and that is missing."""
    for name, transfer in transfers.items():
        if transfer.engine == "detectron2" and find_spec("detectron2") is None:
            yield f"transfers.{name} will need detectron2, which is not installed: run `make detectron2`"
        folder = raw() / ("VOCdevkit" if transfer.kind == "voc" else "coco")
        if transfer.data == "raw" and not folder.is_dir():
            yield f"transfers.{name} will need {folder}, which does not exist yet"


def data(params: Params, say: Callable[[str], None] | None = None) -> tuple[Params, Reader, Reader]:
    """The parameters as they fit the images, which `say` is told, and the images of both splits."""
    train, val = (reader(split, params.dataset) for split in ("train", "val"))
    params, changes = for_few_images(_with_channels(params, train), train, val)
    if say and changes:
        fitted_to = ", ".join(f"{name} from {change}" for name, change in changes.items())
        say(f"fitted to {len(train)} training and {len(val)} validation images: {fitted_to}")
    return params, train, val


def _with_channels(params: Params, train: Reader) -> Params:
    """The parameters with a backbone for the channels of the images."""
    channels = transform(params.dataset, train).channels
    if (given := params.backbone.channels) not in (RGB, channels):
        raise ValueError(
            f"backbone.channels={given}, but the images have {channels}, which is used by itself; remove it"
        )
    if given == channels:
        return params
    backbone = params.backbone.model_copy(update={"channels": channels})
    return params.model_copy(update={"backbone": backbone})


def reader(split: str, dataset: Source) -> Reader:
    """The images of one split, from data/shards or `dataset.store`; ValueError if they are of other data."""
    images = Reader(SHARDS, split, dataset.store, _cache())
    _check_source(dataset, images.manifest.kind)
    known, now = images.manifest.table_sha256, table_sha256(dataset)
    if known and now and known != now:
        raise ValueError(f"{dataset.table_path(raw())} has changed: run `dvc repro -f prepare`")
    return images


def transform(dataset: Source, images: Reader | None = None) -> Transform:
    """How images are normalised, and their evaluation view; `images` give deep levels, or bands, if any."""
    shared = dataset.model_dump(include=set(Transform.model_fields))
    if images is None:
        return Transform.model_validate(shared)
    recorded = {"levels": images.manifest.levels, "bands": images.manifest.bands}
    found = Transform.model_validate({**shared, **recorded})
    found.check_show()
    return found


def _check_source(dataset: Source, kind: str) -> None:
    """Raises ValueError if the shards come from another source or were prepared differently."""
    prepared = {"kind": kind}
    if PREPARED.is_file():
        prepared = json.loads(PREPARED.read_text())["parameters"]["dataset"]
    wanted = dataset.model_dump(mode="json", exclude=AFTER_PREPARING)
    for key in prepared.keys() & wanted.keys():
        if prepared[key] != wanted[key]:
            raise ValueError(
                f"{SHARDS} was prepared with dataset.{key}={prepared[key]}, but params.yaml has "
                f"{wanted[key]}: run `dvc repro prepare`"
            )


def _cache() -> Cache:
    folder = Path(os.environ.get("CL_CACHE") or scratch() / "cache")
    return Cache(folder, round(number_from_environment("CL_CACHE_GB", 20, "gigabytes") * 1e9))


def number_from_environment(variable: str, default: int, unit: str) -> float:
    """The number that an environment variable gives, or the default."""
    text = os.environ.get(variable) or str(default)
    if not re.fullmatch(r"\d*\.?\d+", text):
        raise ValueError(f"{variable}={text}: give a number of {unit}, such as {default}")
    return float(text)


def manifest_hash(shards: Path = SHARDS) -> str:
    """A hash of all images that `reader` reads."""
    return hashlib.sha256(manifest(shards)).hexdigest()
