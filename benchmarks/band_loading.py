"""The data path of bands against tifffile and torchvision: two views of an image, in one thread.

Made images of 256 x 256 pixels and 16 bits; ours are shards of them, theirs uncompressed TIFF files. Both
crop, flip, blur, and change saturation, gain and offset; ours also change hue and turn. As in
`benchmarks.loading`, rates are per second of CPU time, the best of several rounds.
"""

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import tifffile
import torch
import torchvision.transforms.v2 as v2

from benchmarks.loading import fastest
from benchmarks.parameters import parameters
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.images.image import Image, Splits
from cl.runtime.machine import Machine
from cl.shards import writing
from pipeline.support.locations import transform

IMAGES, SIDE = 48, 256
PARAMS = parameters("recipe=own/bands", "dataset.name=made", "views.random.size=224")
HERE = Machine(torch.device("cpu"), 0, "fp32")


def main() -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    print(f"torch {torch.__version__}; images of two views per second on one core")
    for channels in (4, 13):
        with tempfile.TemporaryDirectory() as name:
            files = made(Path(name), channels)
            reader = stored(files, Path(name) / "shards")
            cases = {"tifffile and torchvision v2": theirs(files, reader), "ours": ours(reader)}
            rates = fastest(cases, dict.fromkeys(cases, IMAGES))
        first, second = rates.values()
        print(f"{channels} bands: " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()), end="")
        print(f", {second / first:.1f} times")


def made(folder: Path, channels: int) -> list[Path]:
    """TIFF files of noise over a slope."""
    random = np.random.default_rng(0)
    slope = np.linspace(0, 2000, SIDE)[None, :, None]
    for number in range(IMAGES):
        pixels = (slope + random.uniform(0, 3000, (SIDE, SIDE, channels))).astype(np.uint16)
        tifffile.imwrite(folder / f"{number}.tif", np.moveaxis(pixels, -1, 0), photometric="minisblack")
    return sorted(folder.glob("*.tif"))


def stored(files: list[Path], folder: Path) -> Reader:
    listed = [Image(path.stem, path, 0) for path in files]
    writing.write(Splits(["any"], listed, listed), "bench", PARAMS.dataset, folder)
    return Reader(folder, "train")


def ours(reader: Reader) -> Callable[[], object]:
    view = PARAMS.views["random"].model_copy(update={"count": 2})
    data = TrainSet(reader, transform(PARAMS.dataset, reader), [view], Plan(len(reader), len(reader), 0))
    to_device = data.inputs(HERE)
    return lambda: to_device(data[0])


def theirs(files: list[Path], reader: Reader) -> Callable[[], object]:
    assert reader.manifest.bands
    mean, deviation = (
        torch.tensor(each)[:, None, None]
        for each in (reader.manifest.bands.mean, reader.manifest.bands.deviation)
    )
    contents, view = [path.read_bytes() for path in files], PARAMS.views["random"]
    assert view.bands

    def changed(x: torch.Tensor) -> torch.Tensor:
        gray, saturation = x.mean(0, keepdim=True), torch.empty(1).uniform_(0.6, 1.4)
        x = gray + saturation * (x - gray)
        return x * torch.empty(1).uniform_(0.6, 1.4) + torch.empty(1).uniform_(-0.4, 0.4)

    views = v2.Compose(
        [
            v2.RandomResizedCrop(view.size, scale=view.area, antialias=True),
            v2.RandomHorizontalFlip(view.flip),
            v2.RandomApply([v2.GaussianBlur(view.blur.kernel, view.blur.sigma)], view.blur.p),
            v2.RandomApply([v2.Lambda(changed)], view.bands.p),
        ]
    )

    def two_views(content: bytes) -> list[torch.Tensor]:
        pixels = torch.from_numpy(tifffile.imread(io.BytesIO(content)).astype(np.float32))
        standardised = (pixels - mean) / deviation
        return [views(standardised), views(standardised)]

    return lambda: [two_views(content) for content in contents]


if __name__ == "__main__":
    main()
