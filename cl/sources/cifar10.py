"""CIFAR-10: the python batches as distributed, in `<raw>/cifar-10-batches-py/`."""

from pathlib import Path
from typing import Literal

from torchvision.datasets import CIFAR10
from torchvision.datasets.utils import calculate_md5

from cl.sources import Source, Splits, raw_images


class Config(Source):
    """Nothing to choose."""

    kind: Literal["cifar10"]


def splits(config: Config, raw: Path) -> Splits:
    """50,000 training and 10,000 test images of 32x32 pixels.

    Raises:
        ValueError: a file is missing, or another than the official one.
    """
    return batches(CIFAR10, raw)


def batches(archive: type[CIFAR10], raw: Path) -> Splits:
    """The images of one of torchvision's CIFAR archives; only files with the official md5 are unpickled."""
    _check(archive, raw)
    train, test = (archive(raw, train=train) for train in (True, False))
    folder = raw / archive.base_folder
    return Splits(
        train.classes,
        raw_images("train", folder, train.data, train.targets),
        raw_images("test", folder, test.data, test.targets),
    )


def _check(archive: type[CIFAR10], raw: Path) -> None:
    remedy = (
        f"unpack {archive.filename} (md5 {archive.tgz_md5}) in {raw}, or set CL_RAW to the folder that holds the raw data sets"
    )
    for name, md5 in [*archive.train_list, *archive.test_list, (archive.meta["filename"], archive.meta["md5"])]:
        path = raw / archive.base_folder / name
        if not path.is_file():
            raise ValueError(f"no file {path}; {remedy}")
        if (found := calculate_md5(path)) != md5:
            raise ValueError(f"{path} has md5 {found}, expected {md5}; {remedy}")
