"""Embedded detection scenes: ovals cut out of some photographs, placed on others, in VOC's and in COCO's layout.

The class of an object is its photograph. The files have the layout of the real sets, so that exactly the code that reads
those reads these: `VOCdevkit/VOC2007/{JPEGImages,Annotations,ImageSets/Main}` and `coco/{train2017,val2017,annotations}`.
"""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw
from pycocotools import mask as rle

from cl.sources import Scenes
from cl.sources._shared import photographs

QUALITY = 95
SHRINK = 2.5  # photographs are shown at their own size, or up to so many times smaller


def write(config: Scenes, root: Path) -> None:
    """Write `config.train` and `config.val` scenes below `root` in both layouts; the same bytes for the same config.

    Train scenes are made of the train part of the photographs, validation scenes of the other.

    Raises:
        ValueError: a class is no photograph, or none is left to place objects on.
    """
    if not set(config.classes) < set(photographs.NAMES):
        raise ValueError(
            f"dataset.scenes.classes={config.classes}: expected some of the photographs, but not all, of {', '.join(photographs.NAMES)}"
        )
    voc, coco = root / "VOCdevkit" / "VOC2007", root / "coco"
    for folder in (voc / "JPEGImages", voc / "Annotations", voc / "ImageSets" / "Main", coco / "annotations"):
        folder.mkdir(parents=True)
    number = 0
    for split, voc_split, count in (("train", "trainval", config.train), ("val", "test", config.val)):
        rng = np.random.Generator(np.random.Philox(key=[7, split == "val"]))
        pictures = _pictures(split)
        images: list[dict] = []
        annotations: list[dict] = []
        (coco / f"{split}2017").mkdir()
        for _ in range(count):
            number += 1
            picture, objects = _scene(config, pictures, rng)
            name = f"{number:06d}"
            for path in (voc / "JPEGImages", coco / f"{split}2017"):
                picture.save(path / f"{name}.jpg", quality=QUALITY)
            _write_xml(voc / "Annotations" / f"{name}.xml", name, config.size, objects)
            images.append(
                {"id": number, "file_name": f"{name}.jpg", "width": config.size, "height": config.size}
            )
            for label, mask in objects:
                annotations.append(
                    _annotation(len(annotations) + 1, number, 1 + config.classes.index(label), mask)
                )
        names = "".join(f"{image['id']:06d}\n" for image in images)
        (voc / "ImageSets" / "Main" / f"{voc_split}.txt").write_text(names)
        categories = [{"id": number, "name": label} for number, label in enumerate(config.classes, 1)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (coco / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))


def _pictures(split: str) -> dict[str, Picture.Image]:
    pictures = {}
    for name, path in photographs.files().items():
        with Picture.open(path) as file:
            pictures[name] = photographs.bands(file.convert("RGB"))[split]
    return pictures


def _scene(
    config: Scenes, pictures: dict[str, Picture.Image], rng: np.random.Generator
) -> tuple[Picture.Image, list[tuple[str, np.ndarray]]]:
    """A photograph's part with some objects on it, none overlapping; each object is (class, mask (size, size))."""
    grounds = [name for name in pictures if name not in config.classes]
    scene = _part(pictures[grounds[rng.integers(len(grounds))]], (config.size, config.size), rng)
    taken = np.zeros((config.size, config.size), bool)
    objects = []
    for _ in range(int(rng.integers(config.objects[0], config.objects[1] + 1))):
        label = config.classes[rng.integers(len(config.classes))]
        width, height = (int(v) for v in rng.integers(config.side[0], config.side[1] + 1, 2))
        x, y = (int(rng.integers(0, config.size - length + 1)) for length in (width, height))
        if taken[y : y + height, x : x + width].any():
            continue
        taken[y : y + height, x : x + width] = True
        oval = Picture.new("1", scene.size)
        ImageDraw.Draw(oval).ellipse((x, y, x + width - 1, y + height - 1), fill=1)
        part = Picture.new("RGB", scene.size)
        part.paste(_part(pictures[label], (width, height), rng), (x, y))
        scene.paste(part, mask=oval)
        objects.append((label, np.asarray(oval)))
    return scene, objects


def _part(photograph: Picture.Image, size: tuple[int, int], rng: np.random.Generator) -> Picture.Image:
    """Some part of a photograph, shrunk to `size` (width, height)."""
    largest = min(SHRINK, photograph.width / size[0], photograph.height / size[1])
    shrink = rng.uniform(min(1.0, largest), largest)
    width, height = (int(length * shrink) for length in size)
    left, top = (
        int(rng.integers(0, photograph.width - width + 1)),
        int(rng.integers(0, photograph.height - height + 1)),
    )
    return photograph.crop((left, top, left + width, top + height)).resize(size)


def _box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """First and last column and row of a mask: x0, y0, x1, y1, all included, counted from 0."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1])


def _write_xml(path: Path, name: str, size: int, objects: list[tuple[str, np.ndarray]]) -> None:
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = f"{name}.jpg"
    extent = ElementTree.SubElement(root, "size")
    for tag, value in (("width", size), ("height", size), ("depth", 3)):
        ElementTree.SubElement(extent, tag).text = str(value)
    for label, mask in objects:
        element = ElementTree.SubElement(root, "object")
        for tag, text in (("name", label), ("difficult", "0"), ("truncated", "0"), ("pose", "Unspecified")):
            ElementTree.SubElement(element, tag).text = text
        box = ElementTree.SubElement(element, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), _box(mask), strict=True):
            ElementTree.SubElement(box, tag).text = str(value + 1)  # VOC counts pixels from 1
    ElementTree.ElementTree(root).write(path)


def _annotation(identity: int, image: int, category: int, mask: np.ndarray) -> dict:
    x0, y0, x1, y1 = _box(mask)
    encoded = rle.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {
        "id": identity,
        "image_id": image,
        "category_id": category,
        "bbox": [x0, y0, x1 - x0 + 1, y1 - y0 + 1],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": {"size": encoded["size"], "counts": str(encoded["counts"], "ascii")},  # type: ignore[arg-type]
    }
