"""The images that a transfer trains and tests on, all checked before training starts."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from cl.console.wording import counted
from cl.detection import coco, voc
from cl.detection.config import Config
from cl.detection.records import DataSet, Findings, Record
from cl.runtime.cores import cores


def read(config: Config, root: Path) -> DataSet:
    """The data of a transfer below `root`, which holds `VOCdevkit` or `coco`; ValueError names what is wrong.

    Training images without objects are dropped. All others are decoded once: a damaged one would stop the
    training when its turn comes.
    """
    findings = Findings()
    if config.kind == "voc":
        dataset = voc.read(root / "VOCdevkit", config.train, config.test, findings)
    else:
        dataset = coco.read(root / "coco", config.train, config.test, findings, masks=config.masks)
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
