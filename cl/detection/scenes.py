"""Embedded detection scenes: scikit-learn's scanned digits on photographs, written in VOC and in COCO layout.

The files have the layout of the real sets, so that exactly the code that reads those reads these:
`VOCdevkit/VOC2007/{JPEGImages,Annotations,ImageSets/Main}` and `coco/{train2017,val2017,annotations}`.
"""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image as Picture
from pycocotools import mask as rle

from cl.sources import Scenes
from cl.sources.photos import bands, photographs

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
QUALITY = 95


def write(config: Scenes, root: Path) -> None:
    """Write `config.train` and `config.val` scenes below `root` in both layouts; the same bytes for the same config.

    Train scenes use the train part of photographs and the first 70 % of the digits' scans, validation scenes the rest.
    """
    voc, coco = root / "VOCdevkit" / "VOC2007", root / "coco"
    for folder in (voc / "JPEGImages", voc / "Annotations", voc / "ImageSets" / "Main", coco / "annotations"):
        folder.mkdir(parents=True)
    number = 0
    for split, voc_split, count in (("train", "trainval", config.train), ("val", "test", config.val)):
        rng = np.random.Generator(np.random.Philox(key=[7, split == "val"]))
        grounds, scans = _grounds(split), _scans(config.classes, split)
        images: list[dict] = []
        annotations: list[dict] = []
        (coco / f"{split}2017").mkdir()
        for _ in range(count):
            number += 1
            picture, objects = _scene(config, grounds, scans, rng)
            name = f"{number:06d}"
            for path in (voc / "JPEGImages", coco / f"{split}2017"):
                picture.save(path / f"{name}.jpg", quality=QUALITY)
            _write_xml(voc / "Annotations" / f"{name}.xml", name, config.size, objects)
            images.append({"id": number, "file_name": f"{name}.jpg", "width": config.size, "height": config.size})
            for digit, mask in objects:
                annotations.append(_annotation(len(annotations) + 1, number, digit, mask))
        names = "".join(f"{image['id']:06d}\n" for image in images)
        (voc / "ImageSets" / "Main" / f"{voc_split}.txt").write_text(names)
        categories = [{"id": digit + 1, "name": NAMES[digit]} for digit in config.classes]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (coco / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))


def _grounds(split: str) -> list[Picture.Image]:
    pictures = []
    for path in photographs().values():
        with Picture.open(path) as file:
            pictures.append(bands(file.convert("RGB"))[split])
    return pictures


def _scans(classes: list[int], split: str) -> dict[int, np.ndarray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    scans = {}
    for digit in classes:
        of_class = digits.images[digits.target == digit] / 16
        cut = int(0.7 * len(of_class))
        scans[digit] = of_class[:cut] if split == "train" else of_class[cut:]
    return scans


def _scene(
    config: Scenes, grounds: list[Picture.Image], scans: dict[int, np.ndarray], rng: np.random.Generator
) -> tuple[Picture.Image, list[tuple[int, np.ndarray]]]:
    """A photograph's part with some digits on it, none overlapping; each object is (digit, mask (size, size))."""
    ground = grounds[rng.integers(len(grounds))]
    side = int(rng.integers(min(96, *ground.size), min(*ground.size, 2 * config.size) + 1))
    left, top = (int(rng.integers(0, length - side + 1)) for length in ground.size)
    picture = ground.crop((left, top, left + side, top + side)).resize((config.size, config.size))
    pixels = np.asarray(picture).astype(np.float64)
    taken = np.zeros((config.size, config.size), bool)
    objects = []
    for _ in range(int(rng.integers(config.objects[0], config.objects[1] + 1))):
        digit = config.classes[rng.integers(len(config.classes))]
        scan = scans[digit][rng.integers(len(scans[digit]))]
        size = int(rng.integers(config.digit[0], config.digit[1] + 1))
        x, y = (int(v) for v in rng.integers(0, config.size - size + 1, 2))
        colour = rng.uniform(0, 255, 3)
        if taken[y : y + size, x : x + size].any():
            continue
        ink = (
            np.asarray(Picture.fromarray((scan * 255).astype(np.uint8)).resize((size, size), Picture.Resampling.BICUBIC)) / 255
        )
        mask = np.zeros_like(taken)
        mask[y : y + size, x : x + size] = ink > 0.4
        taken[y : y + size, x : x + size] = True
        alpha = np.clip(ink * 2, 0, 1)[:, :, None]
        part = pixels[y : y + size, x : x + size]
        pixels[y : y + size, x : x + size] = part * (1 - alpha) + colour * alpha
        objects.append((digit, mask))
    return Picture.fromarray(pixels.round().astype(np.uint8)), objects


def _box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """First and last column and row of a mask: x0, y0, x1, y1, all included, counted from 0."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1])


def _write_xml(path: Path, name: str, size: int, objects: list[tuple[int, np.ndarray]]) -> None:
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = f"{name}.jpg"
    extent = ElementTree.SubElement(root, "size")
    for tag, value in (("width", size), ("height", size), ("depth", 3)):
        ElementTree.SubElement(extent, tag).text = str(value)
    for digit, mask in objects:
        element = ElementTree.SubElement(root, "object")
        for tag, text in (("name", NAMES[digit]), ("difficult", "0"), ("truncated", "0"), ("pose", "Unspecified")):
            ElementTree.SubElement(element, tag).text = text
        box = ElementTree.SubElement(element, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), _box(mask), strict=True):
            ElementTree.SubElement(box, tag).text = str(value + 1)  # VOC counts pixels from 1
    ElementTree.ElementTree(root).write(path)


def _annotation(identity: int, image: int, digit: int, mask: np.ndarray) -> dict:
    x0, y0, x1, y1 = _box(mask)
    encoded = rle.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {
        "id": identity,
        "image_id": image,
        "category_id": digit + 1,
        "bbox": [x0, y0, x1 - x0 + 1, y1 - y0 + 1],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": {"size": encoded["size"], "counts": str(encoded["counts"], "ascii")},  # type: ignore[arg-type]
    }
