"""Embedded detection scenes: ovals cut from some photographs and pasted onto others, as VOC and as COCO.

The class of an object is its photograph. The layouts equal the real data sets', so the same code reads both:
`VOCdevkit/VOC2007/{JPEGImages,Annotations,ImageSets/Main}` and `coco/{train2017,val2017,annotations}`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw
from pycocotools import mask as rle

from cl.images import photographs
from cl.sources import Scenes

QUALITY = 95
SHRINK = 2.5  # largest factor by which a photograph is reduced
OBJECTS = 2, 4  # fewest and most in a scene, before overlapping ones are dropped
VOC_SPLITS = {"train": "trainval", "val": "test"}

Objects = list[tuple[str, Picture.Image]]  # class and mask (size, size) of each object


def write(config: Scenes, root: Path) -> None:
    """Write `config.train` and `config.val` scenes below `root` in both layouts.

    The same config gives the same bytes. Training and validation scenes use disjoint parts of photographs.
    """
    voc = root / "VOCdevkit" / "VOC2007"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (voc / folder).mkdir(parents=True)
    (root / "coco" / "annotations").mkdir(parents=True)
    _write_split(config, root, "train", range(1, 1 + config.train))
    _write_split(config, root, "val", range(1 + config.train, 1 + config.train + config.val))


def _write_split(config: Scenes, root: Path, split: str, numbers: range) -> None:
    voc, coco = root / "VOCdevkit" / "VOC2007", root / "coco"
    (coco / f"{split}2017").mkdir()
    images: list[dict] = []
    annotations: list[dict] = []
    for number, (picture, objects) in zip(numbers, _scenes(config, split), strict=False):
        name = f"{number:06d}"
        for folder in (voc / "JPEGImages", coco / f"{split}2017"):
            picture.save(folder / f"{name}.jpg", quality=QUALITY)
        _write_xml(voc / "Annotations" / f"{name}.xml", name, config.size, objects)
        images.append({"id": number, "file_name": f"{name}.jpg", "width": config.size, "height": config.size})
        for label, mask in objects:
            category = 1 + config.classes.index(label)
            annotations.append(_annotation(len(annotations) + 1, number, category, mask))
    (voc / "ImageSets" / "Main" / f"{VOC_SPLITS[split]}.txt").write_text(
        "".join(f"{number:06d}\n" for number in numbers)
    )
    categories = [{"id": category, "name": label} for category, label in enumerate(config.classes, 1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (coco / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))


def _scenes(config: Scenes, split: str) -> Iterator[tuple[Picture.Image, Objects]]:
    """An endless sequence of scenes, equal in every call."""
    rng = np.random.Generator(np.random.Philox(key=[7, split == "val"]))
    photos = {}
    for name, path in photographs.files().items():
        with Picture.open(path) as file:
            photos[name] = photographs.bands(file.convert("RGB"))[split]
    while True:
        yield _scene(config, photos, rng)


def _scene(
    config: Scenes, photos: dict[str, Picture.Image], rng: np.random.Generator
) -> tuple[Picture.Image, Objects]:
    """A crop of a photograph with objects that do not overlap."""
    backgrounds = [name for name in photos if name not in config.classes]
    scene = _crop(photos[backgrounds[rng.integers(len(backgrounds))]], (config.size, config.size), rng)
    taken = np.zeros((config.size, config.size), bool)
    objects = []
    for _ in range(int(rng.integers(OBJECTS[0], OBJECTS[1] + 1))):
        label = config.classes[rng.integers(len(config.classes))]
        width, height = (int(v) for v in rng.integers(config.side[0], config.side[1] + 1, 2))
        x, y = (int(rng.integers(0, config.size - length + 1)) for length in (width, height))
        if taken[y : y + height, x : x + width].any():
            continue
        taken[y : y + height, x : x + width] = True
        oval = Picture.new("1", scene.size)
        ImageDraw.Draw(oval).ellipse((x, y, x + width - 1, y + height - 1), fill=1)
        texture = Picture.new("RGB", scene.size)
        texture.paste(_crop(photos[label], (width, height), rng), (x, y))
        scene.paste(texture, mask=oval)
        objects.append((label, oval))
    return scene, objects


def _crop(photo: Picture.Image, size: tuple[int, int], rng: np.random.Generator) -> Picture.Image:
    """A random part of a photograph, reduced to `size` (width, height)."""
    largest = min(SHRINK, photo.width / size[0], photo.height / size[1])
    shrink = rng.uniform(min(1.0, largest), largest)
    width, height = (int(length * shrink) for length in size)
    left = int(rng.integers(0, photo.width - width + 1))
    top = int(rng.integers(0, photo.height - height + 1))
    return photo.crop((left, top, left + width, top + height)).resize(size)


def _write_xml(path: Path, name: str, size: int, objects: Objects) -> None:
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = f"{name}.jpg"
    _add(ElementTree.SubElement(root, "size"), {"width": size, "height": size, "depth": 3})
    for label, mask in objects:
        element = ElementTree.SubElement(root, "object")
        _add(element, {"name": label, "difficult": 0, "truncated": 0, "pose": "Unspecified"})
        box = mask.getbbox()  # from 0, ends excluded
        assert box
        x0, y0, x1, y1 = box
        edges = {"xmin": x0 + 1, "ymin": y0 + 1, "xmax": x1, "ymax": y1}  # from 1, ends included
        _add(ElementTree.SubElement(element, "bndbox"), edges)
    ElementTree.ElementTree(root).write(path)


def _add(element: ElementTree.Element, texts: dict[str, Any]) -> None:
    for tag, text in texts.items():
        ElementTree.SubElement(element, tag).text = str(text)


def _annotation(annotation_id: int, image: int, category: int, mask: Picture.Image) -> dict[str, Any]:
    encoded = rle.encode(np.asfortranarray(np.asarray(mask, np.uint8)))
    return {
        "id": annotation_id,
        "image_id": image,
        "category_id": category,
        "bbox": rle.toBbox(encoded).astype(int).tolist(),  # x, y, width, height
        "area": int(rle.area(encoded)),
        "iscrowd": 0,
        "segmentation": {"size": encoded["size"], "counts": str(encoded["counts"], "ascii")},  # type: ignore[arg-type]
    }
