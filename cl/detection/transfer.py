"""Train a detector on a pretrained backbone, test it, draw what it finds."""

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from PIL import ImageDraw
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.resnet import ResNet
from torchvision.transforms.functional import hflip, pil_to_tensor

from cl.checkpoint import Checkpoints
from cl.detection import data, models
from cl.detection.average_precision import THRESHOLDS, Detections, coco, voc
from cl.detection.config import Config
from cl.machine import Machine
from cl.optim import set_lr
from cl.order import Plan
from cl.progress import Progress
from cl.sources import Source
from cl.stop import StoppedError, signals

SHOWN, SHOWN_SCORE = 8, 0.5
COLOURS = ("#e63946", "#2a9d8f", "#f4a261", "#457b9d", "#8338ec", "#ffb703", "#06d6a0", "#fb5607", "#3a86ff", "#ff006e")


@dataclass(frozen=True)
class DataSet:
    """The images to train and test on; `annotations` and `categories` are COCO's."""

    classes: list[str]
    train: list[data.Record]
    test: list[data.Record]
    annotations: Path | None = None
    categories: list[int] | None = None

    def digest(self) -> str:
        """A hash of what is trained on: names, boxes and labels."""
        sha = hashlib.sha256()
        for record in self.train:
            sha.update(f"{record.path.name}{record.boxes.tolist()}{record.labels.tolist()}".encode())
        return sha.hexdigest()


def read(config: Config, root: Path) -> DataSet:
    """The data of a transfer below `root`, which holds `VOCdevkit` or `coco`.

    Raises:
        ValueError: files are missing or contradict each other.
    """
    if config.kind == "voc":
        folder = root / "VOCdevkit"
        classes = data.voc_classes(folder, [*config.train, config.test])
        return DataSet(classes, data.read_voc(folder, config.train, classes), data.read_voc(folder, [config.test], classes))
    folder = root / "coco"
    test, categories, classes = data.read_coco(folder, config.test)
    train = []
    for split in config.train:
        records, others, _ = data.read_coco(folder, split)
        if others != categories:
            raise ValueError(f"instances_{split}.json and instances_{config.test}.json in {folder} have different categories")
        train += records
    return DataSet(classes, train, test, folder / "annotations" / f"instances_{config.test}.json", categories)


def run(
    config: Config,
    backbone: ResNet,
    dataset: DataSet,
    *,
    source: Source,
    seed: int,
    machine: Machine,
    progress: Progress,
    out: Path,
    checkpoints: Checkpoints | None = None,
) -> dict[str, float]:
    """Fine-tune a detector, all layers of it, and return its average precisions in percent.

    VOC: ap50, ap75 and ap (mean over overlaps 0.5 to 0.95), 11-point for 2007 as detectron2 does. COCO: box_ap, box_ap50,
    box_ap75 and, where the detector finds masks, the same of masks. Tables by class and a picture of detections go to `out`.
    """
    torch.manual_seed(seed)
    detector = models.build(config, backbone, len(dataset.classes), mean=source.mean, std=source.std)
    machine.place(detector)
    _train(detector, config, dataset.train, seed=seed, machine=machine, progress=progress, checkpoints=checkpoints)
    found = _detect(detector, config, dataset.test, machine)
    draw(found, dataset, out / "detections.png")
    if config.kind == "voc":
        return _voc_metrics(found, dataset, out, eleven_points=config.test.startswith("2007"))
    return _coco_metrics(found, dataset, out)


def _train(
    detector: FasterRCNN,
    config: Config,
    records: list[data.Record],
    *,
    seed: int,
    machine: Machine,
    progress: Progress,
    checkpoints: Checkpoints | None,
) -> None:
    """SGD with linear warm-up and steps. All randomness comes from (seed, iteration)."""
    if config.kind == "coco":  # crowds are left out; VOC's difficult objects are trained on, as detectron2 does
        records = [record.without_ignored() for record in records]
    records = [record for record in records if len(record.boxes)]  # images without objects teach nothing
    plan = Plan(len(records), config.batch_size, seed)
    lr = config.base_lr * config.batch_size / config.reference_batch
    optimizer = _optimizer(detector, config)
    start, _ = checkpoints.restore(detector, optimizer, progress.say) if checkpoints else (0, {})
    detector.train()
    with progress.task(config.iterations, start, max(1, config.iterations // 10)) as meter, signals() as stop:
        recent: list[float] = []
        for iteration in range(start, config.iterations):
            torch.manual_seed(seed * 1_000_003 + iteration)
            epoch, positions = plan.step(iteration)
            batch = [_sample(records[p], machine.device, with_masks=config.detector == "mask_rcnn_c4") for p in positions]
            factor = min(1.0, (iteration + 1) / max(1, config.warmup)) * 0.1 ** sum(iteration >= m for m in config.milestones)
            set_lr(optimizer, lr, factor)
            with machine.autocast():
                loss = torch.stack(list(detector(*map(list, zip(*batch, strict=True))).values())).sum()
            recent.append(float(loss.detach()))
            if not np.isfinite(recent[-1]):
                raise FloatingPointError(f"the detector's loss is {recent[-1]} at iteration {iteration}; lower base_lr")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.step(len(batch), recent[-1], lr * factor)
            if (iteration + 1) % meter.steps_per_epoch == 0:
                meter.epoch({"epoch": epoch + 1, "step": iteration + 1, "loss": float(np.mean(recent)), **meter.rates()})
                recent.clear()
            if checkpoints and (stop or iteration + 1 == config.iterations or checkpoints.due()):
                checkpoints.save(iteration + 1, detector, optimizer, {})
            if stop:
                raise StoppedError(stop[0], iteration + 1, saved=checkpoints is not None)
    detector.eval()


def _optimizer(detector: FasterRCNN, config: Config) -> torch.optim.SGD:
    """SGD on everything that wants a gradient: no weight decay on norm layers, pretrained layers at a rate of their own."""
    norms = {p for m in detector.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    body = set(models.pretrained(detector).parameters())
    groups = [
        {
            "params": [p for p in detector.parameters() if p.requires_grad and (p in norms, p in body) == (norm, in_body)],
            "weight_decay": 0.0 if norm else config.weight_decay,
            "scale": config.backbone_lr if in_body else 1.0,
            "fixed": False,
        }
        for norm in (False, True)
        for in_body in (True, False)
    ]
    return torch.optim.SGD(groups, config.base_lr, momentum=config.momentum)


def _sample(record: data.Record, device: torch.device, *, with_masks: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """An image (3, H, W) in [0, 1] and its objects, both flipped half of the time; labels count from 1."""
    with Picture.open(record.path) as picture:
        image = pil_to_tensor(picture.convert("RGB")).float().div_(255)
    boxes = torch.from_numpy(record.boxes)
    masks = torch.from_numpy(record.masks()) if with_masks else None
    if torch.rand(()) < 0.5:
        image = hflip(image)
        boxes = torch.stack([record.width - boxes[:, 2], boxes[:, 1], record.width - boxes[:, 0], boxes[:, 3]], 1)
        masks = hflip(masks) if masks is not None else None
    target = {"boxes": boxes, "labels": torch.from_numpy(record.labels) + 1}
    if masks is not None:
        target["masks"] = masks
    return image.to(device), {name: value.to(device) for name, value in target.items()}


@torch.no_grad()
def _detect(detector: nn.Module, config: Config, records: list[data.Record], machine: Machine) -> list[Detections]:
    detector.transform.min_size = (config.test_side,)  # type: ignore[union-attr]
    found = []
    for record in records:
        with Picture.open(record.path) as picture:
            image = pil_to_tensor(picture.convert("RGB")).float().div_(255).to(machine.device)
        output = {name: value.float().cpu().numpy() for name, value in detector([image])[0].items()}
        masks = (output["masks"][:, 0] > 0.5).astype(np.uint8) if "masks" in output else None
        found.append(Detections(output["boxes"], output["scores"], output["labels"].astype(np.int64) - 1, masks))
    return found


def _voc_metrics(found: list[Detections], dataset: DataSet, out: Path, *, eleven_points: bool) -> dict[str, float]:
    by_class = voc(found, dataset.test, len(dataset.classes), eleven_points=eleven_points)  # (classes, thresholds)
    means = np.nanmean(by_class, axis=0)
    _write_classes(out, dataset.classes, {"ap": np.nanmean(by_class, 1), "ap50": by_class[:, 0], "ap75": by_class[:, 5]})
    assert np.isclose(THRESHOLDS[5], 0.75)
    return {"ap50": float(means[0]), "ap75": float(means[5]), "ap": float(means.mean())}


def _coco_metrics(found: list[Detections], dataset: DataSet, out: Path) -> dict[str, float]:
    assert dataset.annotations is not None and dataset.categories is not None
    evaluations = coco(found, dataset.test, dataset.annotations, dataset.categories)
    metrics = {}
    for name, evaluation in evaluations.items():
        for key, value in zip(("ap", "ap50", "ap75"), evaluation.stats[:3], strict=True):
            metrics[f"{name}_{key}"] = 100 * max(0.0, float(value))
    columns = {f"{name}_ap": _coco_by_class(evaluation, len(dataset.classes)) for name, evaluation in evaluations.items()}
    _write_classes(out, dataset.classes, columns)
    return metrics


def _coco_by_class(evaluation, classes: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    """(classes,) average precision in percent, all areas, 100 detections an image; NaN for a class without objects."""
    if not evaluation.eval:
        return np.zeros(classes)
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (thresholds, recalls, classes)
    return 100 * np.where(precision > -1, precision, np.nan).mean((0, 1))


def _write_classes(out: Path, classes: list[str], columns: dict[str, np.ndarray]) -> None:
    with (out / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["class", *columns])
        for row, name in enumerate(classes):
            writer.writerow([name, *("" if np.isnan(c[row]) else round(float(c[row]), 2) for c in columns.values())])


def draw(found: list[Detections], dataset: DataSet, path: Path) -> None:
    """Some test images side by side with the boxes and masks that score at least 0.5."""
    side = 256
    shown = list(zip(found, dataset.test, strict=True))[:SHOWN]
    columns = min(4, len(shown))
    sheet = Picture.new("RGB", (columns * side, -(-len(shown) // columns) * side), "white")
    for number, (detections, record) in enumerate(shown):
        with Picture.open(record.path) as file:
            picture = _overlay(file.convert("RGB"), detections, dataset.classes, side)
        sheet.paste(picture, (number % columns * side, number // columns * side))
    sheet.save(path)


def _overlay(picture: Picture.Image, detections: Detections, classes: list[str], side: int) -> Picture.Image:
    scale = side / max(picture.size)
    result = picture.resize((round(picture.width * scale), round(picture.height * scale)))
    pen = ImageDraw.Draw(result)
    for i in np.flatnonzero(detections.scores >= SHOWN_SCORE):
        colour = COLOURS[detections.labels[i] % len(COLOURS)]
        if detections.masks is not None:
            mask = Picture.fromarray(detections.masks[i] * 110).resize(result.size)
            result.paste(Picture.new("RGB", result.size, colour), (0, 0), mask)
        x0, y0, x1, y1 = (float(v) * scale for v in detections.boxes[i])
        pen.rectangle((x0, y0, x1, y1), outline=colour, width=3)
        text = f"{classes[detections.labels[i]]} {detections.scores[i]:.2f}"
        top = y0 - 11 if y0 >= 11 else y1 + 1
        pen.rectangle((x0, top, x0 + 6 * len(text) + 3, top + 11), fill=colour)
        pen.text((x0 + 2, top), text, fill="white")
    return result
