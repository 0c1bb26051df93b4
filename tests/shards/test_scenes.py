"""The embedded detection scenes."""

import numpy as np

from cl.detection import coco, voc
from cl.detection.records import Findings
from cl.shards import scenes
from tests.support.tiny import SCENES


def test_scenes_are_the_same_bytes_every_time(scenes_folder, tmp_path) -> None:
    scenes.write(SCENES, tmp_path)
    first, second = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (scenes_folder, tmp_path)
    )
    assert first == second


def test_both_layouts_hold_the_same_objects(scenes_folder) -> None:
    """VOC's boxes count from 1, ends included; COCO's are x, y, width, height; masks fill their boxes."""
    findings = Findings()
    classes, from_voc, _ = voc.read(scenes_folder / "VOCdevkit", ["2007/trainval"], "2007/test", findings)
    assert classes == ["coins", "grass"]
    assert findings.lines() == ["classes in the annotations, used instead of VOC's twenty: 2 (coins, grass)"]
    found = coco.read(scenes_folder / "coco", "train2017", findings)
    assert not findings.errors
    assert (found.categories, found.classes) == ([1, 2], ["grass", "coins"])
    assert len(from_voc) == len(found.records) == 10
    for a, b in zip(from_voc, found.records, strict=True):
        assert np.array_equal(a.boxes, b.boxes)
        assert [classes[i] for i in a.labels] == [found.classes[i] for i in b.labels]
        for box, mask in zip(b.boxes.astype(int), b.masks(), strict=True):
            rows, columns = np.nonzero(mask)
            assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box.tolist()
