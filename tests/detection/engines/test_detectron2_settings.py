"""The papers' transfers: detectron2's configuration of the models, key by key, and the schedules."""

import pytest

from cl.detection.engines._detectron2_settings import settings
from cl.networks.backbones import build_to_fill
from tests.support.detectron2 import MEAN, SCHEDULES, STD, TABLE


@pytest.mark.parametrize("name", TABLE)
def test_a_transfer_is_the_papers(imagenet, name) -> None:
    """Sixteen images per step; Fast-MoCo trains the backbone at a tenth of the rate."""
    config = imagenet.transfers[name]
    classes = 20 if config.kind == "voc" else 80
    found = settings(config, build_to_fill(imagenet.backbone).name, imagenet.dataset, classes)
    assert found.pop("MODEL.PIXEL_MEAN") == pytest.approx(MEAN)
    assert found.pop("MODEL.PIXEL_STD") == pytest.approx(STD)
    assert found == {key: value for key, value in TABLE[name].items() if "PIXEL" not in key}
    schedule = config.train_sides, config.iterations, config.milestones, config.warmup, config.base_lr
    assert schedule == SCHEDULES[name]
    assert (config.test_side, config.max_side) == (800, 1333)
    assert (config.batch_size, config.reference_batch, config.warmup_start) == (16, 16, 0.001)
    assert (config.momentum, config.weight_decay, config.precise_bn) == (0.9, 0.0001, 200)
    assert config.backbone_lr == (0.1 if "fastmoco" in name else 1)
