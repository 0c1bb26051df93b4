"""Detectors on a pretrained backbone: their parts, their training on one process and on several, and its resumption."""

import copy
import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cl.console.stop import StoppedError
from cl.detection.config import Config
from cl.detection.data import DataSet, read
from cl.detection.engines import engine
from cl.detection.engines.torchvision import Detector
from cl.detection.samples import TrainImages, sample
from cl.detection.transfer import Detection, build_optimizer, estimate_statistics, run
from cl.networks import backbones
from cl.training.checkpoints import Checkpoints
from cl.training.optim import lr_factor, set_lr

RESNET18 = backbones.Config(kind="resnet18", width=1, stem="imagenet", zero_init_residual=False)
FPN = {"detector": "faster_rcnn_fpn", "pooled": 7, "anchors": [16, 32, 64, 128, 256]}
SMALL = {
    "iterations": 2,
    "milestones": [],
    "warmup": 0,
    "precise_bn": 1,
    "train_sides": [96],
    "test_side": 96,
}
SMALL |= {"batch_size": 2, "reference_batch": 2}


def small(params, name: str = "coco_c4", **changes) -> Config:  # type: ignore[no-untyped-def]
    return Config(**params.transfers[name].model_dump() | SMALL | changes)


def built(config: Config, params, drawn) -> Detector:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    return Detector(config, backbones.build(RESNET18), read(config, drawn), params.dataset)


def seeded() -> nn.Module:
    torch.manual_seed(1)
    return backbones.build(RESNET18)


@pytest.mark.parametrize("name", ["voc_c4", "coco_c4"])
def test_a_transfer_runs_from_the_pretrained_backbone(drawn, params, here, quiet, tmp_path, name) -> None:
    """Two iterations: metrics by name, tables by epoch and class, a picture; res5 is one module for boxes and masks."""
    config = small(params, name)
    backbone = backbones.build(params.backbone)
    weights = copy.deepcopy(backbone.state_dict())
    network = Detector(config, backbone, read(config, drawn), params.dataset).network
    for theirs, ours in (("conv1", "conv1"), ("layer1", "res2"), ("layer3", "res4")):
        for key, tensor in network.backbone.get_submodule(ours).state_dict().items():
            assert torch.equal(tensor, weights[f"{theirs}.{key}"])
    if name == "coco_c4":
        assert network.roi_heads.mask_head.shared is network.roi_heads.box_head[0]
    metrics = run(
        config,
        backbones.build(params.backbone),
        read(config, drawn),
        source=params.dataset,
        seed=0,
        machine=here,
        progress=quiet,
        out=tmp_path,
    )
    names = ["ap50", "ap75", "ap"]
    expected = (
        names if name == "voc_c4" else [f"{k}_{m}" for k in ("box", "mask") for m in (*names, "ap_s", "ap_m")]
    )
    assert set(names if name == "voc_c4" else ["box_ap", "mask_ap"]) <= set(metrics) <= set(expected)
    assert {p.name for p in tmp_path.iterdir()} == {"detections.png", "classes.csv", "epochs.csv", "data.csv"}
    assert len((tmp_path / "classes.csv").read_text().splitlines()) == 3


def test_fpn_has_the_parts_of_the_paper(params, drawn) -> None:
    """P2 to P6 with one anchor side each; a head of four 3x3 convolutions and a linear layer, each convolution with norm."""
    network = built(small(params, **FPN), params, drawn).network
    levels = network.backbone(torch.zeros(2, 3, 128, 128)).values()
    assert [tuple(level.shape) for level in levels] == [(2, 256, side, side) for side in (32, 16, 8, 4, 2)]
    assert network.rpn.anchor_generator.sizes == ((16,), (32,), (64,), (128,), (256,))
    assert network.rpn.anchor_generator.num_anchors_per_location() == [3] * 5
    head = list(network.roi_heads.box_head.modules())
    convolutions = [m for m in head if isinstance(m, nn.Conv2d)]
    assert [(m.in_channels, m.out_channels, m.kernel_size) for m in convolutions] == [(256, 256, (3, 3))] * 4
    assert [m.out_features for m in head if isinstance(m, nn.Linear)] == [1024]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in head) == 4
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.backbone.fpn.modules()) == 8
    assert network.roi_heads.box_roi_pool.featmap_names == ["0", "1", "2", "3"]


@pytest.mark.parametrize("changes", [FPN, {}])
def test_every_layer_is_trained(drawn, params, changes) -> None:
    config = small(params, **changes)
    detector = built(config, params, drawn).train()
    items = [
        detector.item(sample(record, 96, 256, mirrored=False)) for record in read(config, drawn).train[:2]
    ]
    losses = detector(items)
    assert set(losses) >= {"loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"}
    assert ("loss_mask" in losses) == config.masks
    sum(losses.values()).backward()
    untrained = [name for name, p in detector.named_parameters() if p.grad is None or not p.grad.any()]
    assert untrained == []
    assert all(p.grad.isfinite().all() for p in detector.parameters())


@pytest.mark.parametrize(("changes", "slow"), [({}, "network.backbone."), (FPN, "network.backbone.body.")])
def test_pretrained_layers_have_their_own_rate(params, drawn, changes, slow) -> None:
    """A tenth for stem to res4 of C4 (not its res5), and for stem to res5 of FPN (not its pyramid); all others in full."""
    config = small(params, backbone_lr=0.1, **changes)
    detector = built(config, params, drawn)
    optimizer = build_optimizer(detector, config)
    set_lr(optimizer, 0.01, 0.5)
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    assert (
        len(groups)
        == sum(len(group["params"]) for group in optimizer.param_groups)
        == len(list(detector.parameters()))
    )
    for name, parameter in detector.named_parameters():
        norm = isinstance(detector.get_submodule(name.rpartition(".")[0]), nn.BatchNorm2d)
        assert groups[parameter]["lr"] == pytest.approx(0.0005 if name.startswith(slow) else 0.005), name
        assert groups[parameter]["weight_decay"] == (0 if norm else config.weight_decay), name


def test_the_schedule_is_that_of_the_papers(params) -> None:
    """VOC at 8 images: half the rate of 16, and twice its 24,000 iterations, its warm-up of 100, and its drops."""
    changes = {
        "iterations": 24000,
        "milestones": [18000, 22000],
        "warmup": 100,
        "base_lr": 0.02,
        "reference_batch": 16,
    }
    config = small(params, "voc_c4", **changes, batch_size=8)
    for images in (16551, 300):
        solver = config.solver(images // 8)
        assert solver.lr() == 0.01
        assert round(solver.epochs * (images // 8)) == 48000

        def rate(step: int, solver=solver, images=images) -> float:  # type: ignore[no-untyped-def]
            return lr_factor(solver, step, 48000, images // 8)

        rates = {0: 0.001, 100: 0.5005, 200: 1, 35999: 1, 36000: 0.1, 43999: 0.1, 44000: 0.01, 47999: 0.01}
        assert {step: rate(step) for step in rates} == pytest.approx(rates)


def test_every_drop_comes_at_its_iteration(params) -> None:
    """Though a drop is a fraction of the run, which rounding could move by a step."""
    for iterations in (90000, 87950, 1003):
        for milestone in range(7, iterations, 997):
            config = small(params, iterations=iterations, milestones=[milestone])
            solver = config.solver(111)
            assert lr_factor(solver, milestone - 1, iterations, 111) == 1
            assert lr_factor(solver, milestone, iterations, 111) == pytest.approx(0.1)


def test_statistics_are_those_of_all_batches(params, here, drawn) -> None:
    """Of the first norm, which sees the images: mean and variance over all pixels of six batches of other sizes, by numpy."""
    config = small(params, "voc_c4", precise_bn=6, iterations=5, train_sides=[64, 96, 160])
    data = read(config, drawn)
    detector = built(config, params, drawn)
    task = Detection(detector, here, 0)
    batches = TrainImages(data.train, config, 0, detector.item)
    estimate_statistics(task, batches, config)
    network = detector.network
    seen = []
    network.transform.train()  # images come resized
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


class Stops(Checkpoints):
    """Asks for a stop when it has saved once."""

    def due(self) -> bool:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGTERM)
        return True


def trained(
    config: Config, data: DataSet, params, here, quiet, out: Path, checkpoints: Checkpoints
) -> dict[str, float]:  # type: ignore[no-untyped-def]
    out.mkdir(exist_ok=True)
    return run(
        config,
        seeded(),
        data,
        source=params.dataset,
        seed=5,
        machine=here,
        progress=quiet,
        out=out,
        checkpoints=checkpoints,
    )


def test_a_stopped_training_goes_on_bit_for_bit(drawn, params, here, quiet, tmp_path) -> None:
    assert_resumes("torchvision", drawn, params, here, quiet, tmp_path)


def assert_resumes(engine: str, drawn, params, here, quiet, tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = small(params, iterations=4, engine=engine)
    data = read(config, drawn)
    whole = trained(config, data, params, here, quiet, tmp_path / "a", Checkpoints(tmp_path / "whole"))
    with pytest.raises(StoppedError, match="after step 2"):
        trained(config, data, params, here, quiet, tmp_path / "b", Stops(tmp_path / "cut"))
    assert trained(config, data, params, here, quiet, tmp_path / "b", Checkpoints(tmp_path / "cut")) == whole
    last = "step-000000004.safetensors"
    weights = [tensors(tmp_path / folder / last) for folder in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    rows = [list(csv.DictReader((tmp_path / folder / "epochs.csv").open())) for folder in ("a", "b")]
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]


def tensors(path: Path) -> dict[str, torch.Tensor]:
    from cl.runtime.tensor_files import load_tensors

    return load_tensors(path)[0]


OVERFIT = {
    "iterations": 34,
    "milestones": [28],
    "warmup": 5,
    "batch_size": 4,
    "subset": 4,
    "precise_bn": 4,
    "base_lr": 0.02,
}
OVERFIT |= {"reference_batch": 4, "train_sides": [96], "test_side": 96, "pooled": 4, "rois": 16}


def overfitted(engine: str, drawn, params, here, quiet, out: Path) -> float:  # type: ignore[no-untyped-def]
    """AP50 on the four images that the detector was trained on."""
    config = small(params, "voc_c4", **OVERFIT, engine=engine, test="2007/trainval")
    metrics = run(
        config,
        seeded(),
        read(config, drawn),
        source=params.dataset,
        seed=0,
        machine=here,
        progress=quiet,
        out=out,
    )
    return metrics["ap50"]


@pytest.mark.slow
def test_four_images_are_learnt_by_heart(drawn, params, here, quiet, tmp_path) -> None:
    assert overfitted("torchvision", drawn, params, here, quiet, tmp_path) > 90


def test_an_engine_that_is_not_installed_is_told() -> None:
    try:
        import detectron2  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(
            ValueError, match="detectron2 is not installed; `make detectron2` compiles it, or choose engine=t"
        ):
            engine("detectron2")
    else:
        assert engine("detectron2").Detector
