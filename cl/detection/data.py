"""The images that a transfer trains and tests on, all checked before training starts."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cl.console.wording import counted
from cl.detection import coco, voc
from cl.detection.config import Config
from cl.detection.records import Findings, Record
from cl.runtime.cores import cores


@dataclass(frozen=True)
class DataSet:
    """The images to train and test on; for COCO also each label's category id.

    `annotations` are those of COCO's test images, in COCO's format, as its evaluators take them.
    """

    classes: list[str]
    train: list[Record]
    test: list[Record]
    findings: Findings
    annotations: dict[str, Any] | None = None
    categories: list[int] | None = None

    def digest(self) -> str:
        """A hash of everything except the pixels."""
        sha = hashlib.sha256()
        for r in (*self.train, *self.test):
            arrays = [array.tolist() for array in (r.boxes, r.labels, r.ignored)]
            sha.update(f"{r.path.name} {r.width}x{r.height} {arrays} {r.segmentations}".encode())
        return sha.hexdigest()


def read(config: Config, root: Path) -> DataSet:
    """The data of a transfer below `root`, which holds `VOCdevkit` or `coco`; ValueError names what is wrong.

    Training images without objects are dropped. All others are decoded once: a damaged one would stop the
    training when its turn comes.
    """
    findings = Findings()
    if config.kind == "voc":
        found = voc.read(root / "VOCdevkit", config.train, config.test, findings)
        dataset = DataSet(*found, findings)
    else:
        dataset = _coco(config, root, findings)
    findings.raise_errors()
    train = dataset.train
    # VOC's difficult objects are trained on, as in detectron2; COCO's crowds are not.
    if config.kind == "coco":
        train = [record.select(~record.ignored) for record in train]
    if empty := [record.path.name for record in train if not len(record.boxes)]:
        findings.notes["training images without objects, dropped"] += empty
    train = [record for record in train if len(record.boxes)]
    test = _subset(dataset.test, config.subset)
    scored = sum(not record.ignored.all() for record in test)
    if not train or not scored:
        raise ValueError(
            f"{root} has {counted(len(train), 'training images')} with objects in {', '.join(config.train)} "
            f"and {counted(scored, 'test images')} with objects in {config.test}; add images with objects to "
            "these lists"
        )
    train = _subset(train, config.subset)
    with ThreadPoolExecutor(cores()) as pool:
        findings.errors.extend(filter(None, pool.map(Record.problem, [*train, *test])))
    findings.raise_errors()
    return replace(dataset, train=train, test=test)


def _subset(records: list[Record], number: int | None) -> list[Record]:
    """At most `number` of the records, evenly spaced."""
    if number is None or number >= len(records):
        return records
    return [records[i] for i in np.linspace(0, len(records) - 1, number).round().astype(int)]


def _coco(config: Config, root: Path, findings: Findings) -> DataSet:
    folder = root / "coco"
    test = coco.read(folder, config.test, findings, masks=config.masks, test=True)
    train, categories, classes = [], test.categories, test.classes
    for split in config.train:
        found = coco.read(folder, split, findings, masks=config.masks)
        if (found.categories, found.classes) != (categories, classes):
            findings.errors.append(
                f"instances_{split}.json and instances_{config.test}.json in {folder} "
                "have different categories"
            )
        train += found.records
    trained = {int(label) for record in train for label in record.labels}
    for label in range(len(classes)):
        if label not in trained:
            findings.notes["categories without training objects"].append(classes[label])
    return DataSet(classes, train, test.records, findings, test.annotations, categories)
