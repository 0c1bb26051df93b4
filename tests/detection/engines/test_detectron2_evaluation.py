"""detectron2's evaluators against ours, and both engines in training."""

import itertools
import re
import shutil

import numpy as np
import pytest

from cl.detection.average_precision import Detections
from cl.detection.average_precision import evaluate as evaluate_ours
from cl.detection.data import read
from pipeline.support.locations import transform
from tests.support.detection import FPN, RESNET50, build_backbone, noisy, small, tuned
from tests.support.detectron2 import needs_detectron2

pytestmark = needs_detectron2


def rounded(detections: list[Detections]) -> list[Detections]:
    """As precise as detectron2's VOC evaluator writes them, with new scores, all distinct."""
    scores = iter(np.random.default_rng(1).permutation(999) / 1000)
    result = []
    for d in detections:
        distinct = np.array(list(itertools.islice(scores, len(d.scores))), np.float32)
        result.append(Detections(d.boxes.round(1), distinct, d.labels, d.masks))
    return result


def test_evaluators_agree_on_both_definitions_of_voc(params, scenes_folder, tmp_path) -> None:
    """Eleven points of 2007, and the area of 2012, here with annotations that hold only names and boxes."""
    from tests.support.detectron2_evaluators import evaluate

    shutil.copytree(scenes_folder / "VOCdevkit" / "VOC2007", tmp_path / "VOCdevkit" / "VOC2012")
    for path in (tmp_path / "VOCdevkit" / "VOC2012" / "Annotations").iterdir():
        path.write_text(re.sub("<(pose|truncated|difficult)>[^<]*</[^>]*>", "", path.read_text()))
    config_2007 = params.transfers["voc_c4"]
    config_2012 = config_2007.model_copy(update={"train": ["2012/trainval"], "test": "2012/test"})
    found = []
    for config, folder in ((config_2007, scenes_folder), (config_2012, tmp_path)):
        dataset = read(config, folder)
        detections = rounded(noisy(dataset))
        ours, _ = evaluate_ours(detections, dataset, config)
        assert ours == pytest.approx(evaluate(detections, dataset, config), abs=1e-6)
        found.append(ours["ap50"])
    assert 5 < found[0] < 95
    assert abs(found[1] - found[0]) > 0.01


@pytest.mark.parametrize("engine", ["torchvision", "detectron2"])
@pytest.mark.parametrize("name", ["voc_c4", "coco_c4", "coco_fpn"])
def test_both_engines_train(params, scenes_folder, tmp_path, name, engine) -> None:
    """A few iterations from the same backbone: the loss falls, and the metrics have the same names."""
    changes = {
        "iterations": 16,
        "train_sides": [160],
        "test_side": 160,
        "base_lr": 0.004,
        "reference_batch": 2,
        "subset": 4,
    }
    if name == "coco_fpn":
        changes |= FPN
    config = small(params, "voc_c4" if name == "voc_c4" else "coco_c4", engine=engine, **changes)
    out, backbone = tmp_path / "out", build_backbone(RESNET50)
    metrics = tuned(config, backbone, read(config, scenes_folder), transform(params.dataset), out=out)
    first, *_, last = (out / "epochs.csv").read_text().splitlines()[1:]
    assert float(last.split(",")[2]) < float(first.split(",")[2])
    assert {"ap50", "ap75", "ap"} <= {key.removeprefix("box_") for key in metrics}
    assert ("mask_ap" in metrics) == (name == "coco_c4")
    assert (out / "detectron2.yaml").exists() == (engine == "detectron2")
