"""detectron2's configuration of the papers' transfers, key by key."""

import pytest

from cl.detection.engines._detectron2_settings import settings
from cl.networks.backbones import build_to_fill
from tests.support.detectron2 import MEAN, STD, TABLE


@pytest.mark.parametrize("name", TABLE)
def test_the_configuration_is_the_papers_key_by_key(imagenet, name) -> None:
    config = imagenet.transfers[name]
    classes = 20 if config.kind == "voc" else 80
    backbone = build_to_fill(imagenet.backbone)
    found = settings(config, backbone.name, imagenet.dataset, classes, polygons=config.masks)
    assert found.pop("MODEL.PIXEL_MEAN") == pytest.approx(MEAN)
    assert found.pop("MODEL.PIXEL_STD") == pytest.approx(STD)
    assert found == {key: value for key, value in TABLE[name].items() if "PIXEL" not in key}


def test_batch_rate_and_schedule_scale_together(imagenet) -> None:
    config = imagenet.transfers["voc_c4_24k"].model_copy(update={"batch_size": 8})
    found = settings(config, "resnet50", imagenet.dataset, 20, polygons=False)
    assert (found["SOLVER.IMS_PER_BATCH"], found["SOLVER.BASE_LR"]) == (8, 0.01)
    assert (found["SOLVER.MAX_ITER"], found["SOLVER.WARMUP_ITERS"]) == (48000, 200)
    assert found["SOLVER.STEPS"] == [36000, 44000]


def test_fast_moco_trains_the_backbone_at_a_tenth_of_the_rate(imagenet) -> None:
    for name in ("voc_c4_fastmoco", "coco_c4_fastmoco"):
        config = imagenet.transfers[name]
        assert (config.base_lr, config.base_lr * config.backbone_lr) == (0.01, pytest.approx(0.001))
