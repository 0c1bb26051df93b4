"""WebDataset shards: plain tars, byte-identical for the same images, with an index and a manifest beside them.

<folder>/train-000000.tar ...     members <key>.jpg and <key>.cls, as any WebDataset reader expects
<folder>/train.npy                the index: one INDEX row a sample
<folder>/manifest.json            classes, counts, sizes and hashes of the shards, what was left out and why
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import webdataset
from PIL import Image as Picture

from cl.sources import UNLABELLED, Image, Splits
from cl.strict import Strict

INDEX = np.dtype([("shard", "<u4"), ("offset", "<u8"), ("length", "<u4"), ("label", "<i4"), ("key", "S128")])
EXTENSIONS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "BMP": "bmp", "WEBP": "webp", "PPM": "ppm", "TIFF": "tif"}
# What Pillow raises for a broken, unknown or monstrous file, and a link to nowhere.
BROKEN = (OSError, SyntaxError, ValueError, KeyError, Picture.DecompressionBombError)


class Shard(Strict):
    """One tar file."""

    name: str
    bytes: int
    sha256: str


class Split(Strict):
    """One split; `skipped` names the images that could not be read, with the reason."""

    images: int
    shards: list[Shard]
    skipped: dict[str, str]


class Manifest(Strict):
    """What lies in a folder of shards."""

    kind: str
    classes: list[str]
    classes_sha256: str
    splits: dict[str, Split]


def write(splits: Splits, kind: str, folder: Path, shard_images: int, report: Callable[[int], None]) -> Manifest:
    """Write the shards, the index and the manifest of both splits into the new folder `folder`.

    Args:
        shard_images: images a shard.
        report: called with the number of images done since the last call.

    Raises:
        ValueError: two images have the same key, a key is longer than the index holds, or a class has no readable image.
    """
    folder.mkdir(parents=True)
    written = {
        name: _write_split(name, images, splits.classes, folder, shard_images, report)
        for name, images in (("train", splits.train), ("val", splits.val))
    }
    digest = hashlib.sha256("\n".join(splits.classes).encode()).hexdigest()
    manifest = Manifest(kind=kind, classes=splits.classes, classes_sha256=digest, splits=written)
    (folder / "manifest.json").write_text(manifest.model_dump_json(indent=1) + "\n")
    return manifest


def _write_split(
    name: str, images: list[Image], classes: list[str], folder: Path, shard_images: int, report: Callable[[int], None]
) -> Split:
    _check_keys(images)
    skipped: dict[str, str] = {}
    # Neighbours in a shard should not share a class: readers shuffle within a window only.
    order = np.random.Generator(np.random.Philox(key=len(images))).permutation(len(images))
    readable = _readable((images[i] for i in order), skipped, report)
    shards: list[Shard] = []
    index = []
    while batch := [sample for _, sample in zip(range(shard_images), readable, strict=False)]:
        path = folder / f"{name}-{len(shards):06d}.tar"
        index.append(_write_shard(path, len(shards), batch))
        shards.append(Shard(name=path.name, bytes=path.stat().st_size, sha256=_sha256(path)))
    rows = np.concatenate(index) if index else np.empty(0, INDEX)
    labels = rows["label"][rows["label"] != UNLABELLED]
    empty = np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0)
    if len(empty):
        reasons = "; ".join(f"{key}: {why}" for key, why in list(skipped.items())[:3])
        raise ValueError(f"class {classes[empty[0]]} has no readable image in {name} ({reasons})")
    np.save(folder / f"{name}.npy", rows)
    return Split(images=len(rows), shards=shards, skipped=skipped)


def _check_keys(images: list[Image]) -> None:
    seen: dict[str, Path] = {}
    for image in images:
        if len(image.key.encode()) > INDEX["key"].itemsize:
            raise ValueError(f"the name of {image.path} is longer than {INDEX['key'].itemsize} bytes: rename it")
        if image.key in seen:
            raise ValueError(
                f"{seen[image.key]} and {image.path} have the same name {image.key!r} without extension: rename one"
            )
        seen[image.key] = image.path


def _readable(images: Iterable[Image], skipped: dict[str, str], report: Callable[[int], None]):  # type: ignore[no-untyped-def]
    """(image, extension, bytes) of each image that decodes; the others go into `skipped`."""
    for image in images:
        try:
            content = image.read()
            if not content:
                raise ValueError("the file is empty")
            with Picture.open(io.BytesIO(content)) as picture:
                extension = EXTENSIONS[picture.format or ""]
                rgb(picture)
            yield image, extension, content
        except BROKEN as error:
            skipped[image.key] = f"{type(error).__name__}: {error}"
        report(1)


def rgb(picture: Picture.Image) -> Picture.Image:
    """Any picture in 8-bit RGB; 16-bit gray is scaled, where Pillow would cut it off at 255.

    Raises:
        ValueError: the pixels are floats or 32-bit integers, whose range nothing tells.
    """
    if picture.mode.startswith("I;16"):
        return Picture.fromarray((np.asarray(picture) // 256).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {picture.mode} have no known range")
    return picture.convert("RGB")


def _write_shard(path: Path, number: int, batch: list[tuple[Image, str, bytes]]) -> np.ndarray:
    """One tar without anything in it that changes from run to run, and its rows of the index."""
    memory = io.BytesIO()
    writer = webdataset.TarWriter(memory, user="cl", group="cl", mode=0o644, mtime=0)
    for image, extension, content in batch:
        writer.write({"__key__": image.key, extension: content, "cls": str(image.label)})
    writer.close()
    with path.open("wb") as file:
        file.write(memory.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    memory.seek(0)
    with tarfile.open(fileobj=memory) as tar:
        members = [m for m in tar if not m.name.endswith(".cls")]
    rows = np.zeros(len(batch), INDEX)
    for row, member, (image, _, _) in zip(rows, members, batch, strict=True):
        row["shard"], row["offset"], row["length"] = number, member.offset_data, member.size
        row["label"], row["key"] = image.label, image.key.encode()
    return rows


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Reader:
    """Random access to the images of one split by their position in the index.

    Raises:
        ValueError: the folder is no complete set of shards, or a shard has not the size that the manifest says.
    """

    def __init__(self, folder: Path, split: str) -> None:
        manifest = folder / "manifest.json"
        if not manifest.is_file():
            raise ValueError(f"no shards in {folder}: run `dvc repro prepare` first")
        self.manifest = Manifest(**json.loads(manifest.read_text()))
        index = folder / f"{split}.npy"
        if not index.is_file():
            raise ValueError(f"no {index}: run `dvc repro prepare` again")
        self.index = np.load(index, allow_pickle=False)
        self._paths = [folder / shard.name for shard in self.manifest.splits[split].shards]
        for path, shard in zip(self._paths, self.manifest.splits[split].shards, strict=True):
            size = path.stat().st_size if path.is_file() else None
            if size != shard.bytes:
                raise ValueError(f"{path} has {size} bytes, its manifest says {shard.bytes}: run `dvc repro prepare` again")
        self._files: dict[int, int] = {}  # file descriptors by shard, of this process

    def __len__(self) -> int:
        return len(self.index)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_files": {}}

    @property
    def labels(self) -> np.ndarray:
        """(n,) int64; UNLABELLED where there is none."""
        return self.index["label"].astype(np.int64)

    @property
    def labelled(self) -> np.ndarray:
        """The positions of the images that have a label, in the order of the index; (m,) int64."""
        return np.flatnonzero(self.index["label"] != UNLABELLED)

    def read(self, position: int) -> bytes:
        """The encoded image at `position` of the index."""
        row = self.index[position]
        shard = int(row["shard"])
        if shard not in self._files:
            self._files[shard] = os.open(self._paths[shard], os.O_RDONLY)
        content = os.pread(self._files[shard], int(row["length"]), int(row["offset"]))
        if len(content) != row["length"]:
            raise ValueError(f"{self._paths[shard]} ends inside an image: run `dvc repro prepare` again")
        return content

    def picture(self, position: int) -> Picture.Image:
        """The decoded image in RGB."""
        return rgb(Picture.open(io.BytesIO(self.read(position))))
