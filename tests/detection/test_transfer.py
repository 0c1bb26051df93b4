"""Fine-tuning a detector: what it writes, its batch-norm statistics, its resumption."""

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from cl.detection.data import read
from cl.detection.drawing import draw
from cl.detection.engines.torchvision import Detector
from cl.detection.records import DataSet, Findings, Record
from cl.detection.samples import TrainImages
from cl.detection.transfer import Detection, estimate_statistics
from pipeline.support.locations import transform
from tests.support.detection import (
    ap50_of_overfitting,
    assert_resumes_bit_for_bit,
    build_backbone,
    detections,
    small,
    tuned,
)

METRICS = {
    "voc_c4": {"ap50", "ap75", "ap"},
    "coco_c4": {f"{kind}_{m}" for kind in ("box", "mask") for m in ("ap", "ap50", "ap75", "ap_s", "ap_m")},
}


@pytest.mark.parametrize("name", METRICS)
def test_a_transfer_writes_metrics_tables_and_a_picture(params, scenes_folder, tmp_path, name) -> None:
    config = small(params, name)
    data, network = read(config, scenes_folder), build_backbone()
    metrics = tuned(config, network, data, transform(params.dataset), out=tmp_path)
    assert set(metrics) == METRICS[name]
    assert {p.name for p in tmp_path.iterdir()} == {"detections.png", "classes.csv", "epochs.csv", "data.csv"}
    assert len((tmp_path / "classes.csv").read_text().splitlines()) == 1 + len(data.classes)


def test_an_image_of_one_pixels_height_is_drawn(tmp_path) -> None:
    Picture.new("RGB", (600, 1)).save(tmp_path / "long.png")
    record = Record(1, tmp_path / "long.png", 600, 1, np.zeros((0, 4)), np.zeros(0), np.zeros(0, bool))
    found = detections([[0, 0, 9, 1]], [0.9], [0])
    draw([found], DataSet(["car"], [], [record], Findings()), tmp_path / "sheet.png")


def test_statistics_are_those_of_all_batches(params, here, scenes_folder) -> None:
    """For the first norm: mean and variance over all pixels of six batches of various sizes, by numpy."""
    config = small(params, "voc_c4", precise_bn=6, iterations=5, train_sides=[64, 96, 160])
    data = read(config, scenes_folder)
    detector = Detector(config, build_backbone(), data, transform(params.dataset))
    task = Detection(detector, here, 0)
    batches = TrainImages(data.train, config, 0, detector.item)
    estimate_statistics(task, batches, config)
    network = detector.network
    seen = []
    network.transform.train()  # images arrive resized
    for items in batches.batches(5, 11, 0):
        images, _ = network.transform([image.float() / 255 for image, _ in items])
        seen.append(network.backbone.conv1(images.tensors).detach().double())
    pixels = torch.cat([x.transpose(0, 1).flatten(1) for x in seen], 1).numpy()
    norm = network.backbone.bn1
    np.testing.assert_allclose(norm.running_mean.numpy(), pixels.mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.running_var.numpy(), pixels.var(1), rtol=1e-4)
    assert len({x.shape for x in seen}) > 1
    assert norm.momentum == 0.1
    assert not task.training


def test_a_stopped_training_resumes_bit_for_bit(params, scenes_folder, tmp_path) -> None:
    assert_resumes_bit_for_bit("torchvision", params, scenes_folder, tmp_path)


@pytest.mark.slow
def test_four_images_can_be_memorised(params, scenes_folder, tmp_path) -> None:
    assert ap50_of_overfitting("torchvision", params, scenes_folder, tmp_path) > 90
