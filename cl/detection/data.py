"""The images that a transfer trains and tests on, checked before anything is trained."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cl.detection import coco, voc
from cl.detection.config import Config
from cl.detection.records import Findings, Record


@dataclass(frozen=True)
class DataSet:
    """The images to train and test on; `annotations` and `categories` are COCO's."""

    classes: list[str]
    train: list[Record]
    test: list[Record]
    findings: Findings
    annotations: Path | None = None
    categories: list[int] | None = None

    def digest(self) -> str:
        """A hash of all but the pixels."""
        sha = hashlib.sha256()
        for r in (*self.train, *self.test):
            arrays = [array.tolist() for array in (r.boxes, r.labels, r.ignored)]
            sha.update(f"{r.path.name} {r.width}x{r.height} {arrays} {r.segmentations}".encode())
        return sha.hexdigest()


def read(config: Config, root: Path) -> DataSet:
    """The data of a transfer below `root`, which holds `VOCdevkit` or `coco`; of images without objects none to train on.

    Raises:
        ValueError: files are missing or contradict each other, each is named.
    """
    findings = Findings()
    dataset = (_voc if config.kind == "voc" else _coco)(config, root, findings)
    findings.stop()
    if (
        config.kind == "coco"
    ):  # crowds are left out; VOC's difficult objects are trained on, as detectron2 does
        dataset = replace(dataset, train=[record.without_ignored() for record in dataset.train])
    for record in dataset.train:
        if not len(record.boxes):
            findings.noted["training images without objects, left out"].append(record.path.name)
    train = [record for record in dataset.train if len(record.boxes)]
    if not train or not dataset.test:
        raise ValueError(
            f"{len(train)} images with objects to train on in {', '.join(config.train)}, and {len(dataset.test)} to test on in "
            f"{config.test}, below {root}; both need some"
        )
    return replace(dataset, train=_some(train, config.subset), test=_some(dataset.test, config.subset))


def _some(records: list[Record], number: int | None) -> list[Record]:
    """So many of them, evenly spread."""
    if number is None or number >= len(records):
        return records
    return [records[i] for i in np.linspace(0, len(records) - 1, number).round().astype(int)]


def _voc(config: Config, root: Path, findings: Findings) -> DataSet:
    return DataSet(*voc.read(root / "VOCdevkit", config.train, config.test, findings), findings)


def _coco(config: Config, root: Path, findings: Findings) -> DataSet:
    folder = root / "coco"
    test, categories, classes = coco.read(folder, config.test, findings, masks=config.masks, test=True)
    train = []
    for split in config.train:
        records, *others = coco.read(folder, split, findings, masks=config.masks)
        if others != [categories, classes]:
            findings.wrong.append(
                f"instances_{split}.json and instances_{config.test}.json in {folder} have different categories"
            )
        train += records
    for label in sorted(
        set(range(len(classes))) - {int(label) for record in train for label in record.labels}
    ):
        findings.noted["categories without an object to train on"].append(classes[label])
    return DataSet(
        classes, train, test, findings, folder / "annotations" / f"instances_{config.test}.json", categories
    )
