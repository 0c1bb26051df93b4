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
    from_voc = voc.read(scenes_folder / "VOCdevkit", ["2007/trainval"], "2007/test", findings)
    assert from_voc.classes == ["coins", "grass"]
    assert findings.lines() == ["classes in the annotations, used instead of VOC's twenty: 2 (coins, grass)"]
    from_coco = coco.read(scenes_folder / "coco", ["train2017"], "val2017", findings, masks=True)
    assert not findings.errors
    assert (from_coco.categories, from_coco.classes) == ([1, 2], ["grass", "coins"])
    assert len(from_voc.train) == len(from_coco.train) == 10
    for a, b in zip(from_voc.train, from_coco.train, strict=True):
        assert np.array_equal(a.boxes, b.boxes)
        assert [from_voc.classes[i] for i in a.labels] == [from_coco.classes[i] for i in b.labels]
        for box, mask in zip(b.boxes.astype(int), b.masks(), strict=True):
            rows, columns = np.nonzero(mask)
            assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box.tolist()
