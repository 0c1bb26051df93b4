"""Crops against torchvision, the random parameters of views, and the authors' settings."""

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as tv
import torchvision.transforms.v2.functional as tv2
from PIL import Image as Picture

from benchmarks.memory import growth
from cl.data.views import (
    ColourParams,
    RandomNumbers,
    View,
    centre,
    draw_colour_params,
    random_crop_box,
    resize,
)

NOISE = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)


def resized(pixels: np.ndarray, box: tuple[int, int, int, int], view: View) -> np.ndarray:
    out = np.empty((1, view.size, view.size, 3), np.uint8)
    resize(pixels, box, view, out)
    return out[0]


def chw(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_equals_torchvision_on_the_same_box(params, interpolation) -> None:
    """Bit for bit torchvision's on tensors; within one level of Pillow's, unless bicubic overshoots."""
    mode = tv.InterpolationMode(interpolation)
    view = params.views["random"].model_copy(update={"interpolation": interpolation})
    for sample in range(20):
        left, top, right, bottom = found = random_crop_box(
            NOISE.shape[:2], view.area, RandomNumbers(0, 0, sample, 0)
        )
        ours = resized(NOISE, found, view)
        where = (top, left, bottom - top, right - left, [32, 32], mode)
        assert np.array_equal(
            ours, tv2.resized_crop(chw(NOISE), *where, antialias=True).permute(1, 2, 0).numpy()
        )
        pillow = np.asarray(tv.resized_crop(Picture.fromarray(NOISE), *where))
        difference = np.abs(ours.astype(int) - pillow)
        assert difference.mean() < 0.5
        assert difference.max() <= 1 or interpolation == "bicubic"


def test_random_numbers_are_philoxs_also_where_several_are_in_use() -> None:
    """Each (seed, epoch, sample, view) counts from its place, however the draws of several alternate."""
    places = [(7, 0, 3, 1), (7, 2, 3, 1), (8, 0, 0, 0), (7, 0, 3, 1)]
    in_use = [RandomNumbers(*place) for place in places]
    found: list[list[float]] = [[] for _ in places]
    for count in (3, 61, 1, 150, 0, 40):  # within what is drawn at a time, up to its end, and beyond
        for numbers, rng in zip(found, in_use, strict=True):
            numbers += rng.take(count)
    for numbers, (seed, *place) in zip(found, places, strict=True):
        philox = np.random.Generator(np.random.Philox(key=seed, counter=[0, *place]))
        assert numbers == philox.random(255).tolist()


def test_boxes_have_the_configured_area_and_ratio() -> None:
    picture = np.empty((300, 400, 3), np.uint8)
    boxes = np.array(
        [
            random_crop_box(picture.shape[:2], (0.2, 1.0), RandomNumbers(1, 0, sample, 0))
            for sample in range(2000)
        ]
    )
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= 400).all()
    assert (boxes[:, 3] <= 300).all()
    assert (width * height / 120_000).min() > 0.19
    assert (width * height / 120_000).max() <= 1
    assert 0.74 < (width / height).min() < 0.78
    assert 1.28 < (width / height).max() < 1.35


def test_boxes_reach_every_side() -> None:
    """A box one pixel narrower than the picture lies at either side equally often."""
    boxes = [random_crop_box((9, 9), (0.7, 0.9), RandomNumbers(1, 0, sample, 0)) for sample in range(2000)]
    lefts = [left for left, _, right, _ in boxes if right - left == 8]
    assert 0.4 < sum(lefts) / len(lefts) < 0.6


def test_an_extreme_picture_falls_back_to_its_centre() -> None:
    picture = np.empty((10, 1000, 3), np.uint8)
    assert random_crop_box(picture.shape[:2], (0.9, 1.0), RandomNumbers(0, 0, 0, 0)) == (493, 0, 506, 10)


def test_centre_is_torchvisions_evaluation_transform() -> None:
    ours = centre(NOISE, 40, 32)
    assert np.array_equal(
        ours, tv2.center_crop(tv2.resize(chw(NOISE), [40], antialias=True), [32]).permute(1, 2, 0).numpy()
    )
    pillow = tv.center_crop(tv.resize(Picture.fromarray(NOISE), 40, tv.InterpolationMode.BILINEAR), 32)
    assert np.abs(ours.astype(int) - np.asarray(pillow)).max() <= 1


@pytest.mark.parametrize("size", [(1, 4_000), (8_001, 2)])
def test_centre_of_a_very_long_picture_takes_little_memory(size) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    height, width = (slice(max(0, length // 2 - 50), length // 2 + 50 + length % 2) for length in size)
    views: list[np.ndarray] = []
    assert growth(lambda: views.append(centre(picture, 256, 224))) < 2**27
    assert np.array_equal(views[0], centre(picture[height, width], 256, 224))


def test_colour_parameters_have_the_configured_distribution(params) -> None:
    draws = [
        draw_colour_params(params.views["random"], RandomNumbers(5, 0, sample, 1)) for sample in range(4000)
    ]
    columns = ColourParams(*np.array(draws).T)
    flags = {"flip": 0.5, "jitter": 0.8, "grayscale": 0.2, "sigma": 0.0, "solarize": 0.0}
    for name, p in flags.items():
        assert getattr(columns, name).mean() == pytest.approx(p, abs=0.03)
    *factors, hue = columns.factors
    assert np.min(factors) >= 0.6
    assert np.max(factors) <= 1.4
    assert np.abs(hue).max() <= 0.1
    orders, counts = np.unique(columns.jitter_order, axis=1, return_counts=True)
    orders = orders.T
    assert (np.sort(orders, 1) == np.arange(4)).all()
    assert len(orders) == 24
    assert ((counts - 4000 / 24) ** 2 / (4000 / 24)).sum() < 50  # chi squared of 23 degrees
