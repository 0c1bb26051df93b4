"""Training images: resized and mirrored with their objects, batched by seed and step, prefetched."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from cl.detection.data import read
from cl.detection.records import Record
from cl.detection.samples import Sample, TrainImages, prefetch, resized_size, sample


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((500, 375), (1067, 800)),
        ((375, 500), (800, 1067)),
        ((640, 160), (1333, 333)),
        ((100, 100), (800, 800)),
    ],
)
def test_the_short_side_is_fixed_unless_the_long_side_would_exceed_its_bound(size, expected) -> None:
    assert resized_size(*size, 800, 1333) == expected


@pytest.mark.parametrize("mirrored", [False, True])
def test_boxes_masks_and_polygons_move_with_the_image(tmp_path, mirrored) -> None:
    """A white rectangle on black, twice as large: box, mask and polygon still cover it."""
    pixels = np.zeros((20, 30, 3), np.uint8)
    pixels[5:10, 4:12] = 255
    Picture.fromarray(pixels).save(tmp_path / "a.png")
    polygon = [4, 5, 12, 5, 12, 10, 4, 10]
    box = np.array([[4, 5, 12, 10]], np.float32)
    record = Record(1, tmp_path / "a.png", 30, 20, box, np.array([0]), np.zeros(1, bool), [[polygon]])
    made = sample(record, 40, 99, mirrored=mirrored)
    left = 60 - 24 if mirrored else 8
    assert made.image.shape == (3, 40, 60)
    assert made.boxes.tolist() == [[left, 10, left + 16, 20]]
    inside = torch.zeros(1, 40, 60, dtype=torch.uint8)
    inside[:, 10:20, left : left + 16] = 1
    assert torch.equal(made.masks(), inside)
    points = made.polygons()[0][0].reshape(-1, 2)
    assert {tuple(p) for p in points.tolist()} == {(left, 10), (left + 16, 10), (left + 16, 20), (left, 20)}
    assert made.image[0][inside[0] == 1].float().mean() > 200
    assert made.image[0][inside[0] == 0].float().mean() < 5


def test_masks_are_resized_at_pixel_centres_as_by_pil() -> None:
    """By a factor that is not an integer."""
    square = [[100, 100, 140, 100, 140, 140, 100, 140]]
    record = Record(1, Path(), 480, 480, np.zeros((1, 4)), np.zeros(1), np.zeros(1, bool), [square])
    resized = Sample(torch.zeros(3, 800, 800), torch.zeros(1, 4), torch.zeros(1), record, False).masks()
    assert np.array_equal(
        resized[0], Picture.fromarray(record.masks()[0]).resize((800, 800), Picture.Resampling.NEAREST)
    )


def test_batches_depend_only_on_seed_and_step(scenes_folder, coco_config, monkeypatch) -> None:
    """On any number of workers; and the shares of two ranks, in order, are the batch of one process."""
    config = coco_config.model_copy(update={"batch_size": 4, "train_sides": [64, 96]})
    records = read(config, scenes_folder).train

    def batches(start: int, stop: int, workers: int = 0, seed: int = 3) -> list[list[tuple]]:
        item = lambda s: (s.record.path.name, s.mirrored, *s.image.shape)  # noqa: E731
        return list(TrainImages(records, config, seed, item).batches(start, stop, workers))

    whole = batches(0, 5)
    assert whole == batches(0, 5, workers=2)
    assert whole[3:] == batches(3, 5)
    assert whole != batches(0, 5, seed=4)
    assert {entry[1] for batch in whole for entry in batch} == {False, True}
    assert {entry[3] for batch in whole for entry in batch} == {64, 96}
    monkeypatch.setattr("cl.detection.samples.ranks", lambda: 2)
    shares = []
    for number in (0, 1):
        monkeypatch.setattr("cl.detection.samples.rank", lambda number=number: number)
        shares.append(batches(0, 5))
    assert [a + b for a, b in zip(*shares, strict=True)] == whole


def test_an_error_in_a_thread_is_raised_in_order() -> None:
    def invert(x: int) -> float:
        return 1 / x

    assert list(prefetch(invert, [1, 2, 4], 2)) == [1, 0.5, 0.25]
    results = prefetch(invert, [4, 0, 1], 2)
    assert next(results) == 0.25
    with pytest.raises(ZeroDivisionError):
        next(results)
