"""The data path against MoCo's transforms, lightly's, torchvision v2's and, if installed, FFCV.

All of them run on one thread and on the same images, in turns; a figure is the best of its turns, and
ratios are taken within a run. Rates are per second of CPU time of all threads, so that they do not depend
on how busy the machine is; only the loader is timed by the clock.

`python -m benchmarks.loading [folder]` takes the JPEGs of this folder; the default is the sample of
ImageNet beside the project if there is one, and otherwise the photographs installed with scikit-image,
scikit-learn and matplotlib.
"""

import io
import itertools
import multiprocessing
import multiprocessing.synchronize
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image as Picture
from PIL import ImageFilter

from benchmarks.parameters import parameters
from cl.data.augment import augment
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.images import photographs
from cl.images.image import Image, Splits
from cl.shards import writing
from cl.sources import Storage
from pipeline.support.locations import transform

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT.parent / "shared" / "data" / "imagenet-sample"
ROUNDS = 5
FEWEST = 96  # images; a smaller number is repeated
BATCH = 256  # images in the loader's batch
WARM = 4  # batches before the loader is timed
PARAMS = parameters("dataset=imagenet", "backbone=resnet50", "views=mocov2")
SOURCE, VIEW = PARAMS.dataset, PARAMS.views["random"]
MEAN, STD = SOURCE.mean, SOURCE.std
TRANSFORM = transform(SOURCE)
STORED = {"originals": {}, "short side 256": {"shrink": 256}, "raw 256": {"shrink": 256, "encode": "raw"}}


def main() -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = images(folder)
        contents = [path.read_bytes() for path in files]
        readers = {kind: stored(files, folder / kind, settings) for kind, settings in STORED.items()}
        size = np.mean([len(content) for content in contents]) / 1e3
        print(
            f"{len(files)} images of {size:.0f} kB, torch {torch.__version__}; images per second on one core"
        )
        smaller = readers["short side 256"]
        shrunk = peers([bytes(smaller.read(position)) for position in range(len(smaller))])
        cases = {
            **peers(contents),
            "MoCo, PIL, short side 256": shrunk["MoCo, PIL"],
            **ours(readers, contents),
        }
        rates = fastest(cases, dict.fromkeys(cases, len(files)))
        ffcv = with_ffcv(folder, stored(files * 10, folder / "many", STORED["raw 256"]))
        report(rates, ffcv)
        loader(files, folder)


def images(folder: Path) -> list[Path]:
    """The JPEGs to measure with."""
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE
    files = sorted(path for path in given.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        for name, path in photographs.files().items():
            with Picture.open(path) as picture:
                picture.convert("RGB").save(folder / f"{name}.jpg", quality=95)
        files = sorted(folder.glob("*.jpg"))
    return files * -(-FEWEST // len(files))


def stored(files: list[Path], folder: Path, settings: dict) -> Reader:
    usual = SOURCE.model_dump(include=set(Storage.model_fields)) | {"shard_images": 50}
    listed = [Image(f"{number:06d}", path, 0) for number, path in enumerate(files)]
    writing.write(
        Splits(["any"], listed, listed),
        "bench",
        Storage(**usual | settings),
        folder,
    )
    reader = Reader(folder, "train")
    assert len(reader) == len(files), "an image cannot be read"
    return reader


def peers(contents: list[bytes]) -> dict[str, Callable[[], object]]:
    """Two views of every image, made from the bytes of its file by other libraries."""
    import lightly.transforms
    import torchvision.transforms as v1
    import torchvision.transforms.v2 as v2
    from torchvision.io import ImageReadMode, decode_jpeg

    moco = v1.Compose(
        [
            v1.RandomResizedCrop(224, scale=(0.2, 1.0)),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v1.RandomGrayscale(0.2),
            v1.RandomApply([lambda x: x.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))], p=0.5),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )
    tensors = v2.Compose(
        [
            v2.RandomResizedCrop(224, scale=(0.2, 1.0), antialias=True),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    lightly_moco = lightly.transforms.MoCoV2Transform(input_size=224)

    def pillow(content: bytes) -> Picture.Image:
        return Picture.open(io.BytesIO(content)).convert("RGB")

    def of_tensors(content: bytes) -> list[torch.Tensor]:
        image = decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB)
        return [tensors(image), tensors(image)]

    return {
        "MoCo, PIL": lambda: [(moco(x), moco(x)) for x in map(pillow, contents)],
        "lightly MoCoV2Transform": lambda: [lightly_moco(pillow(content)) for content in contents],
        "torchvision v2, tensors": lambda: [of_tensors(content) for content in contents],
    }


def ours(readers: dict[str, Reader], contents: list[bytes]) -> dict[str, Callable[[], object]]:
    """A data worker's part (two uint8 crops), and the whole path with colour and normalisation on the CPU."""
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (MEAN, STD))

    def whole(data: TrainSet) -> list[torch.Tensor]:
        batch = data[0]
        return [
            augment(x, colour_params, VIEW, mean=mean, std=std)
            for x, colour_params in zip(batch.images, batch.colour_params, strict=True)
        ]

    def read(reader: Reader) -> None:
        for position in range(len(reader)):
            bytes(reader.read(position))

    cases: dict[str, Callable[[], object]] = {
        "decode alone": lambda: [simplejpeg.decode_jpeg(content) for content in contents],
        "read alone": lambda: read(readers["originals"]),
    }
    for kind, reader in readers.items():
        data = TrainSet(reader, TRANSFORM, [VIEW], Plan(len(reader), len(reader), 0))
        cases[f"worker, {kind}"] = worker(data)
        cases[f"whole, {kind}"] = lambda data=data: whole(data)  # type: ignore[misc]
    return cases


def worker(data: TrainSet) -> Callable[[], None]:
    """Fill one batch after the other in reused memory, as data workers do."""
    size = data.plan.batch_size
    memory = [array.allocate(size, shared=True) for array in data.arrays]
    rows = slice(0, size)
    steps = itertools.count()
    return lambda: data.fill(next(steps), rows, memory)


def fastest(cases: dict[str, Callable[[], object]], images: dict[str, int]) -> dict[str, float]:
    """Images per second of every case: the best of several rounds, in each of which all cases run."""
    rates = dict.fromkeys(cases, 0.0)
    for _ in range(ROUNDS):
        for name, case in cases.items():
            began = time.process_time()
            case()
            rates[name] = max(rates[name], images[name] / (time.process_time() - began))
    return rates


def with_ffcv(folder: Path, reader: Reader) -> tuple[float, float] | None:
    """FFCV's and our single views per second, without colour, from the raw images of `reader`."""
    try:
        from ffcv.fields import IntField, RGBImageField
        from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.writer import DatasetWriter
    except ImportError:
        return None
    path, many = folder / "raw.beton", [(reader.pixels(position), 0) for position in range(len(reader))]
    DatasetWriter(
        path, {"image": RGBImageField(write_mode="raw"), "label": IntField()}, num_workers=1
    ).from_indexed_dataset(many)
    decoder = RandomResizedCropRGBImageDecoder((224, 224), scale=(0.2, 1.0))
    pipelines = {"image": [decoder], "label": None}
    theirs = Loader(
        path, batch_size=100, num_workers=1, order=OrderOption.SEQUENTIAL, os_cache=True, pipelines=pipelines
    )
    data = TrainSet(reader, TRANSFORM, [VIEW], Plan(len(reader), 100, 0))
    fill = worker(data)
    cases = {
        "theirs": lambda: [None for _ in theirs],
        "ours": lambda: [fill() for _ in range(data.plan.steps_per_epoch)],
    }
    theirs_rate, ours_rate = fastest(cases, {"theirs": len(many), "ours": 2 * len(many)}).values()
    return theirs_rate, ours_rate


def report(rates: dict[str, float], ffcv: tuple[float, float] | None) -> None:
    slowest = rates["MoCo, PIL"]
    for name, rate in rates.items():
        print(f"{name:28} {rate:9.0f}   {rate / slowest:7.1f} times MoCo's")
    wanted = {
        "worker, originals": 5.0,
        "worker, short side 256": 12.0,
        "whole, originals": 2.8,
        "whole, short side 256": 4.5,
    }
    for name, least in wanted.items():
        verdict(f"{name}: {least:g} times MoCo's", rates[name] / slowest, least)
    verdict("reading: 20 times the speed of decoding", rates["read alone"] / rates["decode alone"], 20)
    if ffcv is None:
        print("FFCV is not installed; not compared")
    else:
        print(f"single views from raw 256: FFCV {ffcv[0]:.0f}/s, ours {ffcv[1]:.0f}/s")
        verdict("raw: 1.5 times FFCV's views", ffcv[1] / ffcv[0], 1.5)


def verdict(what: str, found: float, least: float) -> None:
    print(f"{what}: {found:.2f}, {'reached' if found >= least else 'MISSED'}")


def loader(files: list[Path], folder: Path) -> None:
    """Two workers that fill the ring, against two bare processes that make the same batches for nobody.

    Both are timed from the moment their memory has been written once until their last batch.
    """
    for kind, steps in {"originals": 12, "short side 256": 30, "raw 256": 60}.items():
        reader = stored(files * -(-BATCH // len(files)), folder / f"{kind}, a batch", STORED[kind])
        data = TrainSet(reader, TRANSFORM, [VIEW], Plan(len(reader), BATCH, 0))
        ratios = []
        for _ in range(ROUNDS + 4):
            barrier = multiprocessing.Barrier(3)
            bare = [multiprocessing.Process(target=run, args=(data, steps // 2, barrier)) for _ in range(2)]
            for process in bare:
                process.start()
            barrier.wait(timeout=60)
            began = time.perf_counter()
            barrier.wait(timeout=600)
            alone = (time.perf_counter() - began) / steps
            for process in bare:
                process.join()
            batches = data.batches(0, WARM + steps, 2)
            for _ in range(WARM):
                next(batches)
            began = time.perf_counter()
            for _ in range(steps):
                next(batches)
            ratios.append(alone / ((time.perf_counter() - began) / steps))
            assert next(batches, None) is None
        verdict(f"loader with 2 workers, {kind}: 0.9 of 2 bare processes", float(np.median(ratios)), 0.9)


def run(data: TrainSet, steps: int, barrier: multiprocessing.synchronize.Barrier) -> None:
    fill = worker(data)
    fill()
    barrier.wait()
    for _ in range(steps):
        fill()
    barrier.wait()


if __name__ == "__main__":
    main()
