"""Copies of a patch: each distortion against a statement of its own in plain numbers, pixel by pixel."""

import colorsys
import math

import numpy as np
import pytest

from cl.data import surrogate
from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import TrainSet
from cl.data.surrogate import Distortion, Patch, Surrogate
from cl.data.views import View, generator
from tests.support.project import compose

NONE = (1.0, 1.0, 0.0)
SAME = Distortion(1.0, 0.0, 0.0, 0.0, np.ones(3), NONE, NONE, 0.0)
MEAN = (0.4, 0.5, 0.6)


@pytest.fixture(scope="module")
def view(tmp_path_factory) -> View:
    values = compose(tmp_path_factory.mktemp("views"), "views=exemplar_2014")["views"]["random"]
    return View(**values)


def picture(height: int = 60, width: int = 80) -> np.ndarray:
    """Smooth, so that a bilinear sample hardly depends on the last bits of its place."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 9 + 1), np.cos(y / 7), np.sin((x + 2 * y) / 13)]
    return np.rint(127.5 + 120 * np.stack(waves, 2)).astype(np.uint8)


def sample(pixels: np.ndarray, x: float, y: float) -> np.ndarray:
    """Bilinear at a point of the plane in which pixel (0, 0) covers 0 to 1; reflected at border pixels."""
    height, width, _ = pixels.shape

    def reflected(i: int, n: int) -> int:
        i = abs(i) % (2 * n - 2)
        return min(i, 2 * n - 2 - i)

    x, y = x - 0.5, y - 0.5
    left, top = math.floor(x), math.floor(y)
    total = np.zeros(3)
    for i, wx in ((left, left + 1 - x), (left + 1, x - left)):
        for j, wy in ((top, top + 1 - y), (top + 1, y - top)):
            total += wx * wy * pixels[reflected(j, height), reflected(i, width)]
    return total


@pytest.mark.parametrize(
    ("patch", "how"),
    [
        (Patch(40.0, 30.0, 8.0), SAME),
        (Patch(41.3, 28.6, 8.0), SAME),
        (Patch(40.0, 30.0, 8.0), SAME._replace(scale=0.7)),
        (Patch(40.0, 30.0, 8.0), SAME._replace(right=0.25, down=-0.2)),
        (Patch(40.0, 30.0, 8.0), SAME._replace(rotation=math.radians(20))),
        (Patch(40.0, 30.0, 25.0), SAME._replace(scale=1.3, right=0.1, down=0.2, rotation=-0.3)),
        (Patch(3.0, 58.0, 10.0), SAME._replace(rotation=0.2)),  # partly outside
    ],
)
def test_a_warp_samples_the_turned_square(patch, how) -> None:
    """Each of 8 x 8 pixels is the mean of samples on a grid in its part of the square."""
    pixels, size = picture(), 8
    ours = surrogate.warp(pixels, patch, how, size, "bilinear")
    side = patch.side * how.scale
    k = max(1, round(side / size))
    for row in range(size):
        for column in range(size):
            total = np.zeros(3)
            for i in range(k):
                for j in range(k):
                    right = ((column + (j + 0.5) / k) / size - 0.5) * side
                    down = ((row + (i + 0.5) / k) / size - 0.5) * side
                    cos, sin = math.cos(how.rotation), math.sin(how.rotation)
                    x = patch.x + how.right * patch.side + cos * right - sin * down
                    y = patch.y + how.down * patch.side + sin * right + cos * down
                    total += sample(pixels, x, y) / k**2
            assert np.abs(ours[row, column] - total).max() < 1.6, (row, column)


def recoloured(pixel: np.ndarray, how: Distortion, low: float, high: float) -> np.ndarray:
    """One pixel; `low` and `high`: the smallest and largest number of its image after the first part."""
    hue, saturation, value = colorsys.rgb_to_hsv(*((pixel - low) / (high - low)))
    changed = [
        min(1.0, max(0.0, factor * channel**power + offset))
        for channel, (power, factor, offset) in ((saturation, how.saturation), (value, how.value))
    ]
    return 255 * np.array(colorsys.hsv_to_rgb((hue + how.hue) % 1, *changed))


def mixed(pixel: np.ndarray, how: Distortion) -> np.ndarray:
    """Coordinates along lightness, blue to yellow, green to red are multiplied, around the mean colour."""
    away = pixel / 255 - np.array(MEAN)
    axes = [np.array([1, 1, 1]) / 3**0.5, np.array([1, 1, -2]) / 6**0.5, np.array([1, -1, 0]) / 2**0.5]
    moved = sum(factor * (away @ axis) * axis for factor, axis in zip(how.components, axes, strict=True))
    return np.clip(np.array(MEAN) + moved, 0, 1)


@pytest.mark.parametrize(
    "how",
    [
        SAME,
        SAME._replace(components=np.array([2.0, 0.5, 1.5])),
        SAME._replace(saturation=(2.5, 0.8, 0.1)),
        SAME._replace(value=(0.4, 1.3, -0.1)),
        SAME._replace(hue=0.1),
        SAME._replace(hue=-0.1),
        Distortion(1.0, 0.0, 0.0, 0.0, np.array([0.6, 2.0, 0.7]), (0.5, 1.2, -0.05), (2.0, 0.9, 0.1), 0.07),
    ],
)
def test_colours_change_as_stated(how) -> None:
    pixels = np.random.default_rng(0).integers(50, 200, (6, 7, 3), dtype=np.uint8)
    ours = surrogate.recolour(pixels, how, MEAN)
    first = np.array([[mixed(pixel, how) for pixel in row] for row in pixels])
    for row in range(6):
        for column in range(7):
            theirs = recoloured(first[row, column], how, first.min(), first.max())
            assert np.abs(ours[row, column] - theirs).max() < 0.52, (row, column)


def test_an_image_of_one_colour_stays_finite() -> None:
    flat = np.full((4, 4, 3), 77, np.uint8)
    assert (surrogate.recolour(flat, SAME, MEAN) == surrogate.recolour(flat, SAME, MEAN)[0, 0]).all()


def test_distortions_have_the_published_distributions(view) -> None:
    draws = [surrogate.draw(view.surrogate, generator(0, 0, number, 0)) for number in range(4000)]
    uniform = {
        "scale": ([d.scale for d in draws], 2**-0.5, 2**0.5),
        "right": ([d.right for d in draws], -0.25, 0.25),
        "down": ([d.down for d in draws], -0.25, 0.25),
        "rotation": ([math.degrees(d.rotation) for d in draws], -20, 20),
        "hue": ([d.hue for d in draws], -0.1, 0.1),
    }
    for name in ("saturation", "value"):
        power, factor, offset = zip(*(getattr(d, name) for d in draws), strict=True)
        uniform |= {
            f"{name} power": (np.log2(power), -2, 2),
            f"{name} factor": (np.log2(factor), -0.5, 0.5),
            f"{name} offset": (offset, -0.1, 0.1),
        }
    for name, (values, low, high) in uniform.items():
        places = (np.sort(values) - low) / (high - low)
        assert np.abs(places - (np.arange(4000) + 0.5) / 4000).max() < 0.03, name  # Kolmogorov and Smirnov
    logs = np.log2([d.components for d in draws])
    assert logs.mean(0) == pytest.approx([0, 0, 0], abs=0.06)
    assert logs.std(0) == pytest.approx([1, 1, 0.5], rel=0.05)
    columns = np.array([values for values, _, _ in uniform.values()] + list(logs.T))
    assert np.abs(np.corrcoef(columns) - np.eye(len(columns))).max() < 0.06  # independent


def test_patches_have_four_sizes_and_lie_on_details() -> None:
    """Noise in one quarter of a flat image: no patch is centred far from it."""
    pixels = np.full((96, 96, 3), 128, np.uint8)
    pixels[48:, 48:] = np.random.default_rng(0).integers(0, 256, (48, 48, 3))
    patches = [
        surrogate.choose_patch(pixels, (0.1111, 0.4239), 4, generator(0, 0, number, 7))
        for number in range(600)
    ]
    sides, counts = np.unique([round(p.side, 1) for p in patches], return_counts=True)
    assert sides == pytest.approx([32, 40, 50, 62.5], abs=0.1)
    assert (np.abs(counts - 150) < 50).all()
    for patch in patches:
        half = patch.side / 2
        assert all(half - 6.1 < c < 96 - half + 6.1 for c in (patch.x, patch.y))  # inside, but for a cell
    on_details = [p.x > 40 and p.y > 40 for p in patches if p.side < 45]
    assert np.mean(on_details) > 0.9  # 0.4 if places were uniform


@pytest.mark.parametrize("size", [(1, 1), (2, 90), (17, 5)])
def test_the_smallest_and_longest_images_have_a_patch(size) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    patch = surrogate.choose_patch(pixels, (0.1, 0.4), 4, generator(0, 0, 0, 0))
    assert 0 <= patch.x <= size[1]
    assert 0 <= patch.y <= size[0]
    assert surrogate.warp(pixels, patch, SAME, 8, "bilinear").shape == (8, 8, 3)


def test_all_copies_in_all_epochs_are_of_one_patch(params, shard_folder, view) -> None:
    """Of all kinds of views. Without distortions, all are equal; with them, no two are. Other views stay."""
    reader, usual = Reader(shard_folder, "train"), params.views["random"]
    still = Surrogate(
        sizes=4, scale=1, shift=0, rotation=0, components=(0, 0, 0), power=0, factor=0, offset=0, hue=0
    )
    plan = Plan(len(reader), 8, 0)
    for settings, equal in ((still, True), (view.surrogate, False)):
        copies = view.model_copy(update={"surrogate": settings})
        kinds = [copies, copies.model_copy(update={"count": 1}), usual]
        data = TrainSet(reader, params.dataset, kinds, plan)
        by_position: dict[int, list[np.ndarray]] = {}
        for step in (0, plan.steps_per_epoch, 2 * plan.steps_per_epoch, 1, plan.steps_per_epoch + 1):
            batch = data[step]
            for copy in range(3):
                for position, image in zip(batch.positions.tolist(), batch.images[copy], strict=True):
                    by_position.setdefault(position, []).append(image.numpy())
        for first, *others in by_position.values():
            assert all(np.array_equal(first, other) == equal for other in others)
        assert any(len(images) > 3 for images in by_position.values())
    beside = TrainSet(reader, params.dataset, [usual.model_copy(update={"count": 4}), usual], plan)
    assert np.array_equal(data[0].images[3], beside[0].images[3])


def test_what_a_view_refuses(view) -> None:
    values = view.model_dump()
    with pytest.raises(ValueError, match="surrogate needs jigsaw=null and area above 0, found area="):
        View(**{**values, "area": [0.0, 0.4]})
    with pytest.raises(ValueError, match="surrogate needs jigsaw=null"):
        View(**{**values, "jigsaw": {"grid": 2, "side": 64}})
