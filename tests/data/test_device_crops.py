"""Batches that the training device decodes and crops: those of the data workers up to rounding."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl import config
from cl.data import device_crops, ring
from cl.data.device_crops import CropOnDevice, DeviceTrainSet, on_device, resident
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.to_device import HostBatch
from cl.runtime.machine import Machine
from pipeline.support.locations import transform
from pipeline.support.pretraining import cropped
from tests.support.pictures import FILES, file_of, photograph, with_orientation
from tests.support.project import compose
from tests.support.tiny import stored

CPU = torch.device("cpu")
SIZE = 8  # of a batch


def name(kind: str) -> str:
    return kind.replace(":", "").replace(" ", "_")


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    """Images of one size; and of all sizes, kinds and orientations."""
    rng = np.random.default_rng(0)
    same = {
        f"{n:02d}.png": file_of(photograph(32, 32).rotate(int(rng.integers(360))), "PNG") for n in range(40)
    }
    any_kind = {f"{name(kind)}.img.jpg": content for kind, content in FILES.items()}
    any_kind |= {f"turned{n}.jpg": with_orientation(n) for n in range(1, 9)}
    folder = tmp_path_factory.mktemp("device")
    return {
        "resident": stored(folder / "same", same),
        "decoded": stored(folder / "any", any_kind, upright=True),
    }


@pytest.fixture(scope="module")
def here() -> Machine:
    return Machine(CPU, 0, "fp32")


def plain(reader: Reader, params: config.Params, rank: int = 0, ranks: int = 1) -> TrainSet:
    views = [view.model_copy(update={"count": 2}) for view in params.views.values()]
    views.append(views[0].model_copy(update={"count": 1, "size": 17, "interpolation": "bicubic"}))
    return TrainSet(reader, transform(params.dataset), views, Plan(len(reader), SIZE, 7, rank, ranks))


def on_cpu(data: TrainSet, here: Machine) -> DeviceTrainSet:
    return on_device(data, here, lambda sentence: None)


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


@pytest.mark.parametrize("kind", ["resident", "decoded"])
def test_batches_are_those_of_the_workers(readers, params, here, kind, monkeypatch) -> None:
    """Positions, labels, groups and colours are equal, and crops up to the rounding of uint8."""
    monkeypatch.setattr(ring, "SLICE", 3)  # several for each batch
    reader = readers[kind]
    reader.groups = np.arange(len(reader)) % 3 - 1
    data = plain(reader, params)
    device = on_cpu(data, here)
    assert (device.resident is not None) == (kind == "resident")
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
    del reader.groups


@pytest.mark.parametrize("kind", ["resident", "decoded"])
def test_two_processes_and_a_resumed_run_see_the_same_batches(readers, params, here, kind) -> None:
    """The crops of an image do not depend on those beside it."""

    def batches(rank: int, ranks: int, start: int) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        data = on_cpu(plain(readers[kind], params, rank, ranks), here)
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


def test_images_that_differ_in_size_or_take_much_memory_are_not_resident(readers, here, monkeypatch) -> None:
    assert resident(readers["decoded"], here) is None
    with monkeypatch.context() as patch:
        patch.setattr(device_crops, "COMPARED", 0)  # only the pass over all images finds out
        assert resident(readers["decoded"], here) is None
    reader = readers["resident"]
    needed = len(reader) * 3 * 32 * 32
    monkeypatch.setattr(device_crops.memory, "available", lambda: 4 * needed)
    expected = np.stack([reader.pixels(position) for position in range(len(reader))])
    for workers in (0, 2):
        found = resident(reader, Machine(CPU, workers, "fp32"))
        assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), expected)
    monkeypatch.setattr(device_crops.memory, "available", lambda: 4 * needed - 4)
    assert resident(reader, here) is None


def test_resident_images_are_cropped_without_waiting_for_the_gpu(readers, params, monkeypatch) -> None:
    data = plain(readers["resident"], params)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)  # a simulated GPU has no streams
    with FakeGpu() as gpu:
        kept = torch.empty((len(readers["resident"]), 3, 32, 32), dtype=torch.uint8, device=GPU)
        device = DeviceTrainSet(data, kept)
        gpu.may_wait = False
        inputs = device.inputs(Machine(GPU, 0, "fp32"))
        ready = inputs(device[0])
    assert {x.device for x in (*ready.views, ready.labels, ready.positions)} == {GPU}


def test_only_jpegs_in_colour_are_left_to_the_device(readers) -> None:
    reader = readers["decoded"]
    for position, key in enumerate(reader.keys):
        found = device_crops.content(reader, position)
        left = found.data.ndim == 1
        plain_jpeg = key.decode().startswith(("jpeg", "mpo", "turned"))
        strange = any(word in key.decode() for word in ("RGB", "gray", "CMYK", "YCCK"))
        assert left == (plain_jpeg and not strange), key
        pixels = reader.pixels(position)
        assert (found.height, found.width) == pixels.shape[:2]
        (image,) = device_crops.decode([found], CPU)
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels), key


def test_only_a_file_that_the_device_cannot_read_is_decoded_by_the_cpu(
    readers, params, here, monkeypatch
) -> None:
    said: list[str] = []
    data = on_device(plain(readers["decoded"], params), here, said.append)
    batch = data[0]
    expected = crops(data, batch, here)
    said.clear()
    bad = next(n for n, image in enumerate(batch.contents) if image.data.ndim == 1)
    decode_jpeg = device_crops.decode_jpeg

    def broken(files: list[torch.Tensor], *options: object, **more: object) -> list[torch.Tensor]:
        if any(np.array_equal(file.numpy(), batch.contents[bad].data) for file in files):
            raise RuntimeError("nvjpegDecode failed: 4")
        return decode_jpeg(files, *options, **more)

    monkeypatch.setattr(device_crops, "decode_jpeg", broken)
    assert all(torch.equal(a, b) for a, b in zip(crops(data, batch, here), expected, strict=True))
    assert data.undecodable == {int(batch.positions[bad])}
    assert data[0].contents[bad].data.ndim == 3, "not tried again"
    (sentence,) = said
    assert data.plain.reader.keys[batch.positions[bad]].decode() in sentence


@pytest.mark.parametrize("failure", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_full_memory_and_a_failing_gpu_stop_the_run(readers, params, here, monkeypatch, failure) -> None:
    data = on_cpu(plain(readers["decoded"], params), here)

    def broken(*_: object, **__: object) -> None:
        raise failure("CUDA error")

    monkeypatch.setattr(device_crops, "decode_jpeg", broken)
    with pytest.raises(failure):
        crops(data, data[0], here)


def test_a_damaged_image_is_named(params, here, tmp_path) -> None:
    files = {f"{n}.jpg": file_of(photograph(40 + n, 50)) for n in range(SIZE)}
    files["3.jpg"] = files["3.jpg"][:-10]
    reader = stored(tmp_path, files, verify=False)
    data = DeviceTrainSet(plain(reader, params), None)
    with pytest.raises(ValueError, match=r"^3 cannot be decoded"):
        crops(data, data[0], here)


def test_a_device_that_cannot_decode_is_refused(readers, params, here, monkeypatch) -> None:
    """Images that stay on the device are decoded by the CPU."""

    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("torchvision has no nvJPEG\nmore")

    monkeypatch.setattr(device_crops, "decode_jpeg", missing)
    with pytest.raises(ValueError, match=r"^cpu cannot decode JPEGs .*no nvJPEG.*cropping=workers$"):
        on_cpu(plain(readers["decoded"], params), here)
    assert on_cpu(plain(readers["resident"], params), here).resident is not None


def test_the_parameter_chooses(readers, params, here, tmp_path) -> None:
    data, said = plain(readers["resident"], params), list[str]()
    assert cropped(params, data, here, said.append) is data
    assert not said
    settings = params.optim.model_copy(update={"cropping": "device"})
    found = cropped(params.model_copy(update={"optim": settings}), data, here, said.append)
    assert isinstance(found.inputs(here), CropOnDevice)
    assert said == ["the images stay on cpu, which crops them"]


def test_patches_are_left_to_the_workers(tmp_path: Path) -> None:
    choices = "views=pirl_small", "method=pirl"
    compose(tmp_path, *choices)
    with pytest.raises(Exception, match=r"optim.cropping=device .* views.patches; .*optim.cropping=workers"):
        compose(tmp_path, *choices, "optim.cropping=device")
