"""Batches that the training device crops: those of the data workers up to rounding."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl import config
from cl.data import device_crops, ring
from cl.data.device_crops import CropOnDevice, DeviceTrainSet, resident
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.to_device import HostBatch
from cl.data.views import View, resize
from cl.runtime.machine import Machine
from pipeline.support.locations import transform
from pipeline.support.pretraining import cropped
from tests.support.pictures import file_of, photograph
from tests.support.project import compose
from tests.support.tiny import stored

CPU = torch.device("cpu")
SIZE = 8  # of a batch


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Images of one size."""
    rng = np.random.default_rng(0)
    turned = [photograph(32, 32).rotate(int(rng.integers(360))) for _ in range(40)]
    files = {f"{n:02d}.png": file_of(picture, "PNG") for n, picture in enumerate(turned)}
    return stored(tmp_path_factory.mktemp("device"), files)


@pytest.fixture(scope="module")
def here() -> Machine:
    return Machine(CPU, 0, "fp32")


def views_of(params: config.Params) -> list[View]:
    views = [view.model_copy(update={"count": 2}) for view in params.views.values()]
    return [*views, views[0].model_copy(update={"count": 1, "size": 17, "interpolation": "bicubic"})]


def plain(reader: Reader, params: config.Params, rank: int = 0, ranks: int = 1) -> TrainSet:
    return TrainSet(
        reader, transform(params.dataset), views_of(params), Plan(len(reader), SIZE, 7, rank, ranks)
    )


def on_device(data: TrainSet, params: config.Params, images: torch.Tensor) -> DeviceTrainSet:
    return DeviceTrainSet(images, data.reader, data.transform, views_of(params), data.plan)


def crops(data: DeviceTrainSet, batch: HostBatch, here: Machine) -> list[torch.Tensor]:
    """The crops of each view, (N, 3, S, S) uint8."""
    inputs = data.inputs(here)
    together = zip(inputs.crops(batch), inputs.kinds, strict=True)
    return [view for images, (_, count) in together for view in images.chunk(count)]


def assert_equal(found: object, expected: object) -> None:
    """Two batches, in all but their images."""
    for field in fields(expected):  # type: ignore[arg-type]
        a, b = (getattr(batch, field.name) for batch in (found, expected))
        assert a is b or field.name in ("images", "views") or torch.equal(a, b)


def test_batches_are_those_of_the_workers(reader, params, here, monkeypatch) -> None:
    """Positions, labels, groups and colours are equal, and crops up to the rounding of uint8."""
    monkeypatch.setattr(ring, "SLICE", 3)  # several for each batch
    monkeypatch.setattr(reader, "groups", np.arange(len(reader)) % 3 - 1)
    data = plain(reader, params)
    device = on_device(data, params, resident(reader, here))
    steps = 2 * data.plan.steps_per_epoch
    crop = device.inputs(here)
    for expected, batch in zip(data.batches(0, steps, 0), device.batches(0, steps, 2), strict=True):
        assert_equal(batch, expected)
        for found, view in zip(crops(device, batch, here), expected.images, strict=True):
            difference = (found.int() - view.int()).abs()
            assert difference.max() <= 2
            assert difference.float().mean() < 0.1
    ready, usual = crop(batch), data.inputs(here)(expected)
    assert_equal(ready, usual)
    for found, view in zip(ready.views, usual.views, strict=True):
        assert (found - view).abs().mean() < 0.05
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_two_processes_and_a_resumed_run_see_the_same_batches(reader, params, here) -> None:
    """The crops of an image do not depend on those beside it."""
    images = resident(reader, here)

    def batches(rank: int, ranks: int, start: int) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        data = on_device(plain(reader, params, rank, ranks), params, images)
        return [(batch.positions, crops(data, batch, here)) for batch in data.batches(start, 6, 0)]

    whole = batches(0, 1, 0)
    halves = [batches(rank, 2, 0) for rank in (0, 1)]
    for step, (positions, views) in enumerate(whole):
        assert torch.equal(torch.cat([half[step][0] for half in halves]), positions)
        for number, view in enumerate(views):
            assert torch.equal(torch.cat([half[step][1][number] for half in halves]), view)
    for expected, found in zip(whole[4:], batches(0, 1, 4), strict=True):
        assert torch.equal(found[0], expected[0])
        assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_differ_in_size_or_take_much_memory_are_refused(
    reader, tmp_path, monkeypatch, workers: int
) -> None:
    here = Machine(CPU, workers, "fp32")
    monkeypatch.setattr(device_crops, "available", lambda: 4 * len(reader) * 3 * 32 * 32)
    expected = np.stack([reader.pixels(position) for position in range(len(reader))])
    assert np.array_equal(resident(reader, here).permute(0, 2, 3, 1).numpy(), expected)
    monkeypatch.setattr(device_crops, "available", lambda: 4 * len(reader) * 3 * 32 * 32 - 4)
    with pytest.raises(ValueError, match=r"GiB on cpu, expected at most .*optim\.cropping=workers$"):
        resident(reader, here)
    monkeypatch.undo()
    sizes = [(32, 32)] * 7 + [(32, 31)]
    files = {f"{n}.png": file_of(photograph(*size), "PNG") for n, size in enumerate(sizes)}
    with pytest.raises(ValueError, match=r"^\d has 3\d x 32 pixels, but .* optim\.cropping=workers$"):
        resident(stored(tmp_path, files), here)


def test_images_are_cropped_without_waiting_for_the_gpu(reader, params, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)  # a simulated GPU has no streams
    with FakeGpu() as gpu:
        images = torch.empty((len(reader), 3, 32, 32), dtype=torch.uint8, device=GPU)
        device = on_device(plain(reader, params), params, images)
        gpu.may_wait = False
        inputs = device.inputs(Machine(GPU, 0, "fp32"))
        ready = inputs(device[0])
        products, weights = (gpu.counts()[name] for name in ("bmm", "bitwise_and"))
        assert (products, weights) == (4, 2), "equal views together, and the weights of both axes"
    assert {x.device for x in (*ready.views, ready.labels, ready.positions)} == {GPU}


def test_the_parameter_chooses(reader, params, here) -> None:
    data = plain(reader, params)
    assert cropped(params, data, here) is data
    settings = params.optim.model_copy(update={"cropping": "device"})
    found = cropped(params.model_copy(update={"optim": settings}), data, here)
    assert isinstance(found.inputs(here), CropOnDevice)


def test_patches_are_left_to_the_workers(tmp_path: Path) -> None:
    choices = "views=pirl_small", "method=pirl"
    compose(tmp_path, *choices)
    with pytest.raises(Exception, match=r"optim.cropping=device .* views.patches; choose workers"):
        compose(tmp_path, *choices, "optim.cropping=device")


RNG = np.random.default_rng(0)
IMAGES = {
    "noise": RNG.integers(0, 256, (50, 70, 3), dtype=np.uint8),
    "black and white": RNG.integers(0, 2, (96, 96, 3), dtype=np.uint8) * np.uint8(255),
    "smooth": np.asarray(photograph(120, 90)),
}
SIZES = (16, 32, 96, 224)


def boxes_in(height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Random boxes, the whole image, boxes at its edges, and tiny and thin ones."""
    found = [(0, 0, width, height), (width - 5, 0, width, height), (0, height - 3, width, height)]
    found += [(0, 0, 1, 1), (width - 1, height - 1, width, height), (0, 0, 2, 3), (3, 4, 4, height)]
    for _ in range(20):
        w, h = RNG.integers(1, [width + 1, height + 1])
        left, top = RNG.integers(0, [width - w + 1, height - h + 1])
        found.append((int(left), int(top), int(left + w), int(top + h)))
    return found


def together(image: torch.Tensor, boxes: list, size: int, interpolation: str) -> torch.Tensor:
    images = image.expand(len(boxes), *image.shape)
    return device_crops.crop(images, torch.tensor(boxes), size, interpolation)


def by_worker(pixels: np.ndarray, boxes: list, view: View) -> np.ndarray:
    out = np.empty((len(boxes), view.size, view.size, 3), np.uint8)
    for number, box in enumerate(boxes):
        resize(pixels, box, view, out[number : number + 1])
    return out


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", SIZES)
def test_crops_are_those_of_the_workers(params, interpolation: str, size: int) -> None:
    """Up to the rounding of uint8, after each of two passes."""
    view = params.views["random"].model_copy(update={"interpolation": interpolation, "size": size})
    for pixels in IMAGES.values():
        boxes = boxes_in(*pixels.shape[:2])
        expected = by_worker(pixels, boxes, view)
        found = together(torch.from_numpy(pixels.copy()).permute(2, 0, 1), boxes, size, interpolation)
        assert found.dtype == torch.uint8
        difference = np.abs(found.permute(0, 2, 3, 1).numpy().astype(int) - expected)
        assert difference.max() <= 2
        assert difference.mean() < 0.1


def test_the_products_use_all_bits_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the precision of training, which stays as it was."""
    seen = []
    product = torch.Tensor.__matmul__

    def watched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    image, box = torch.zeros((1, 3, 8, 8), dtype=torch.uint8), torch.tensor([[0, 0, 8, 8]])
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        device_crops.crop(image, box, 4, "bilinear")
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert seen == [False, False]
