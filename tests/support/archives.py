"""Tiny archives in the official layouts of the data sources."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image as Picture
from torchvision.datasets import CIFAR10, STL10

from cl.data.reader import Reader
from cl.images.image import Splits
from cl.runtime.registry import module_of
from cl.sources import Source
from cl.sources._shared import imagenet
from tests.support.tiny import write_shards

CLASSES = ["apple", "bee", "cup", "dog"]
WNIDS = ["n00000003", "n00000001", "n00000002"]  # in the order of their numbers in the devkit


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def splits_of(source: Source, raw: Path) -> Splits:
    return module_of("sources", source.kind).splits(source, raw)


def write_and_read(splits: Splits, folder: Path, shard_images: int = 10) -> tuple[Reader, Reader]:
    """Readers of both splits, from freshly written shards."""
    write_shards(splits, folder, shard_images)
    return Reader(folder, "train"), Reader(folder, "val")


def with_hashes_of(official: type, folder: Path) -> type:
    """One of torchvision's archives with the md5 of the files in `folder`, and a URL that nobody serves."""

    def md5(name: str) -> str:
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    attributes = {
        name: [[file, md5(file)] for file, _ in getattr(official, name)]
        for name in ("train_list", "test_list")
    }
    if meta := getattr(official, "meta", None):
        attributes["meta"] = {**meta, "md5": md5(meta["filename"])}
    return type("Tiny", (official,), {**attributes, "url": "http://127.0.0.1:9/nothing"})


def tiny_cifar(official: type[CIFAR10], raw: Path, key: str) -> type[CIFAR10]:
    """Write files as in the official archive, eight images each, and return the class with their hashes."""
    folder = raw / official.base_folder
    folder.mkdir(parents=True)
    for number, (name, _) in enumerate([*official.train_list, *official.test_list]):
        value = {"data": noise(number, 8, 3072), key: [3, 2, 1, 0] * 2, "coarse_labels": [9] * 8}
        (folder / name).write_bytes(pickle.dumps(value))
    (folder / official.meta["filename"]).write_bytes(pickle.dumps({official.meta["key"]: CLASSES}))
    return with_hashes_of(official, folder)


def tiny_stl10(raw: Path) -> type[STL10]:
    """Write 12 labelled, 8 test and 20 unlabelled images; the last are the test images and noise.

    A class is a pattern with a little noise, so that the nearest neighbours of an image are of its class.
    """
    folder = raw / "stl10_binary"
    folder.mkdir(parents=True)
    (folder / "class_names.txt").write_text("\n".join(CLASSES) + "\n")
    patterns = noise(0, 4, 3, 96, 96) // 2
    images = {}
    for name, count in (("train", 3), ("test", 2)):
        labels = np.tile(np.arange(4), count)
        images[name] = patterns[labels] + noise(count, len(labels), 3, 96, 96) // 4
        (folder / f"{name}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
    images["unlabeled"] = np.concatenate([images["test"], noise(9, 12, 3, 96, 96)])
    for name, pixels in images.items():
        (folder / f"{name}_X.bin").write_bytes(pixels.tobytes())
    return with_hashes_of(STL10, folder)


def write_imagenet_folders(root: Path) -> None:
    """Class folders: three training and two validation images per class."""
    for label, wnid in enumerate(WNIDS):
        names = {
            "train": [f"{wnid}_{number}" for number in range(3)],
            "val": [f"ILSVRC2012_val_{2 * label + number + 1:08d}" for number in range(2)],
        }
        for split in names:
            (root / split / wnid).mkdir(parents=True)
            for number, name in enumerate(names[split]):
                picture = Picture.fromarray(noise(10 * label + number, 40, 50, 3))
                picture.save(root / split / wnid / f"{name}.JPEG")


def write_imagenet_archives(folders: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same images in archives as the official ones; the devkit's md5 is that of ours."""
    root.mkdir(parents=True)
    with tarfile.open(root / imagenet.TRAIN, "w") as outer:
        for wnid in WNIDS:
            images = {path.name: path.read_bytes() for path in (folders / "train" / wnid).iterdir()}
            add_member(outer, f"{wnid}.tar", tar_of(dict(sorted(images.items(), reverse=True))))
    val = {path.name: path.read_bytes() for path in (folders / "val").rglob("*.JPEG")}
    (root / imagenet.VAL).write_bytes(tar_of(dict(sorted(val.items()))))
    fields = [(name, "O") for name in ("ILSVRC2012_ID", "WNID", "words")]
    synsets = np.array([(number + 1, wnid, "words") for number, wnid in enumerate(WNIDS)], fields)
    meta = io.BytesIO()
    scipy.io.savemat(meta, {"synsets": synsets})
    with tarfile.open(root / imagenet.DEVKIT, "w:gz") as tar:
        add_member(tar, imagenet.META, meta.getvalue())
        add_member(tar, imagenet.TRUTH, b"1\n1\n2\n2\n3\n3\n")
    md5 = hashlib.md5((root / imagenet.DEVKIT).read_bytes()).hexdigest()
    monkeypatch.setattr(imagenet, "DEVKIT_MD5", md5)


def tar_of(members: dict[str, bytes]) -> bytes:
    """An uncompressed tar of plain files."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for name, content in members.items():
            add_member(tar, name, content)
    return memory.getvalue()


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def add_special(tar: tarfile.TarFile, name: str, kind: bytes, target: str = "") -> None:
    """A member that is not a plain file: a link, a pipe, a device."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    tar.addfile(member)
