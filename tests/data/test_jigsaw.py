"""Patches of a jigsaw, and the random numbers of the photometric operation."""

import numpy as np
import pytest

from cl.data.views import (
    OPERATIONS,
    ColourParams,
    RandomNumbers,
    View,
    cut_patches,
    draw_colour_params,
    random_crop_box,
)

JIGSAW = {"size": 10, "count": 9, "jigsaw": {"grid": 3, "side": 36}}


def jigsaw(params, **changes: object) -> View:
    """A kind of view that gives nine patches of 10 px from cells of 12 px."""
    return View(**{**params.views["random"].model_dump(), **JIGSAW, **changes})


def patches_of(pixels: np.ndarray, view: View, sample: int) -> np.ndarray:
    """(9, 10, 10, 3): the patches that one stream gives."""
    patches = np.empty((view.count, view.size, view.size, 3), np.uint8)
    cut_patches(pixels, view, RandomNumbers(3, 0, sample, 1), list(patches))
    return patches


def test_patches_are_windows_of_the_nine_cells_of_one_crop(params) -> None:
    """Each pixel of this picture gives its own place: every window of every cell appears, in any order."""
    down, across = np.mgrid[:36, :36].astype(np.uint8)
    picture = np.stack([down, across, np.zeros_like(down)], 2)
    whole = jigsaw(params, area=[1.0, 1.0])
    seen, orders = set(), set()
    for sample in range(400):
        rng = RandomNumbers(3, 0, sample, 1)
        assert random_crop_box(picture.shape[:2], whole.area, rng) == (0, 0, 36, 36)
        patches = patches_of(picture, whole, sample)
        corners = patches[:, 0, 0, :2].astype(int)
        assert np.array_equal(patches[:, :, 0, 0] - patches[:, :1, 0, 0], np.tile(np.arange(10), (9, 1)))
        assert np.array_equal(patches[:, 0, :, 1] - patches[:, 0, :1, 1], np.tile(np.arange(10), (9, 1)))
        cells = corners // 12
        assert len(np.unique(cells, axis=0)) == 9
        assert (corners % 12).max() <= 2
        seen |= set(map(tuple, corners.tolist()))
        orders.add(tuple(cells[0]))
    assert len(seen) == 9 * 9
    assert len(orders) == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 8}, "jigsaw.grid=3 gives 9 patches, but count=8; choose"),
        ({"size": 13}, r"size=13 .* cells of 12 px, .*; choose a smaller size"),
        ({"jigsaw": {"grid": 3, "side": 35}}, "side=35 must be a multiple of grid=3"),
        ({"photometric": 0.0}, "order=.*must name"),
        ({"order": [*OPERATIONS, "photometric"]}, "order=.*must name each of jitter, gray.* exactly once"),
    ],
)
def test_views_that_do_not_fit_together_are_refused(params, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        jigsaw(params, **changes)


def test_the_photometric_operation_has_the_papers_distribution(params) -> None:
    """Its numbers come last: the others are those of a view without it."""
    usual = params.views["random"]
    order = [*usual.order, "photometric"]
    view = View(**{**usual.model_dump(), "order": order, "photometric": 0.66})
    rows = [draw_colour_params(view, RandomNumbers(5, 0, sample, 0)) for sample in range(4000)]
    plain = [draw_colour_params(usual, RandomNumbers(5, 0, sample, 0)) for sample in range(4000)]
    assert [row[:-4] for row in rows] == [row[:-4] for row in plain]
    assert not np.array(plain)[:, -4:].any()
    columns = ColourParams(*np.array(rows).T)
    assert columns.photometric.mean() == pytest.approx(0.66, abs=0.03)
    assert np.bincount(columns.bits.astype(int))[4:] == pytest.approx([800] * 5, abs=100)
    for values, low, high in ((columns.sharpness, 0.1, 1.9), (columns.threshold, 0, 1)):
        assert (values.min(), values.max()) == pytest.approx((low, high), abs=0.01)
        assert values.mean() == pytest.approx((low + high) / 2, abs=0.03)
