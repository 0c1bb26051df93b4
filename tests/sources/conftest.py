"""Tiny archives for the tests of the sources."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torchvision import datasets
from torchvision.datasets import CIFAR10, CIFAR100

from cl import config
from cl.sources import Source
from tests.support.archives import (
    CLASSES,
    tiny_cifar,
    tiny_stl10,
    write_imagenet_archives,
    write_imagenet_folders,
)
from tests.support.pictures import tree
from tests.support.project import TINY, compose


@pytest.fixture
def source(tmp_path, monkeypatch) -> Callable[[str], Source]:  # type: ignore[no-untyped-def]
    """The shipped configuration of a source, and below `tmp_path / "raw"` a tiny archive for it."""

    def make(kind: str) -> Source:
        raw, overrides = tmp_path / "raw", []
        match kind:
            case "imagenet":
                tree(raw / "imagenet", classes=CLASSES)
                overrides = [f"dataset.classes={len(CLASSES)}"]
            case "imagenet100":
                tree(raw / "imagenet", classes=CLASSES)
                (tmp_path / "list.txt").write_text("\n".join(CLASSES))
                overrides = [f"dataset.list={tmp_path / 'list.txt'}"]
            case "folder":
                tree(raw / "folder", classes=CLASSES)
            case "unlabelled":
                tree(raw / "unlabelled", classes=CLASSES)
                overrides = ["dataset.holdout=0.5"]
            case "table":
                tree(raw / "table", classes=CLASSES)
                rows = [
                    f"{path.relative_to(raw / 'table')},{path.parent.name},{path.parts[-3]}"
                    for path in sorted(raw.rglob("*.jpg"))
                ]
                (raw / "table/images.csv").write_text("\n".join(["path,label,split", *rows]))
            case "photos":
                overrides = TINY
            case "cifar10":
                monkeypatch.setattr(datasets, "CIFAR10", tiny_cifar(CIFAR10, raw, "labels"))
            case "cifar100":
                monkeypatch.setattr(datasets, "CIFAR100", tiny_cifar(CIFAR100, raw, "fine_labels"))
            case "stl10":
                monkeypatch.setattr(datasets, "STL10", tiny_stl10(raw))
        return config.check(compose(tmp_path, f"dataset={kind}", *overrides)).dataset

    return make


@pytest.fixture
def ilsvrc(tmp_path, monkeypatch) -> Path:  # type: ignore[no-untyped-def]
    """The folder with ImageNet's three archives, of three classes, inside a raw folder."""
    write_imagenet_folders(tmp_path / "folders")
    write_imagenet_archives(tmp_path / "folders", tmp_path / "raw/imagenet", monkeypatch)
    return tmp_path / "raw/imagenet"
