"""Made copies, the comparison of pixels, and groups."""

import numpy as np
import pytest
from PIL import Image as Picture

from cl.features import copies
from cl.images import photographs


@pytest.fixture(scope="module")
def pictures() -> list[Picture.Image]:
    return [Picture.open(path).convert("RGB").resize((300, 220)) for path in photographs.files().values()]


def described(image: np.ndarray, left: float, top: float, width: float, height: float) -> np.ndarray:
    """The descriptor of a window, by interpolation in the integral image."""
    total = np.zeros((65, 65))
    total[1:, 1:] = image.astype(float).cumsum(0).cumsum(1)
    at = np.arange(65)
    ys, xs = (start + np.linspace(0, length, 17) for start, length in ((top, height), (left, width)))
    columns = np.stack([np.interp(xs, at, row) for row in total])
    corners = np.stack([np.interp(ys, at, column) for column in columns.T], axis=1)
    cells = np.diff(np.diff(corners, axis=0), axis=1) / (width * height / 256)
    edges = np.concatenate([np.diff(cells, axis=0).ravel(), np.diff(cells, axis=1).ravel()])
    roots = np.sign(edges) * np.sqrt(np.abs(edges))
    return roots / np.linalg.norm(roots)


def test_correlations_equal_a_loop_over_windows(pictures) -> None:
    image, *others = (copies.small(picture) for picture in pictures[:4])
    windows = [(start, 64 - 3.2 * less) for less in range(5) for start in 3.2 * np.arange(less + 1)]
    parts = [described(image, x, y, width, height) for x, width in windows for y, height in windows]
    expected = [
        max(float(part @ described(x, 0, 0, 64, 64)) for part in parts for x in (other, other[:, ::-1]))
        for other in others
    ]
    np.testing.assert_allclose(copies.correlations(image, np.stack(others)), expected, atol=1e-4)


@pytest.mark.parametrize("change", copies.CHANGES, ids=lambda change: change.__name__)
def test_copies_agree(change, pictures) -> None:
    """But for the photograph of bricks, whose rows fit in several places."""
    rng = np.random.default_rng(0)
    count = len(pictures)
    small = np.stack([copies.small(x) for x in [*pictures, *(change(picture, rng) for picture in pictures)]])
    own = np.stack([np.arange(count), count + np.arange(count)], axis=1)
    assert np.sort(copies.agreement(small, own))[1] > 0.7


def test_different_photographs_do_not_agree(pictures) -> None:
    small = np.stack([copies.small(picture) for picture in pictures])
    others = np.stack(np.triu_indices(len(pictures), 1), axis=1)
    assert copies.agreement(small, others).max() < 0.7


def test_the_agreement_is_that_of_the_better_direction(pictures) -> None:
    """The second image is a part of the first, or the first of the second."""
    part = pictures[0].crop((15, 30, 270, 210))
    small = np.stack([copies.small(x) for x in (pictures[0], part, pictures[1])])
    first, second, different = copies.agreement(small, np.array([(0, 1), (1, 0), (1, 2)]))
    expected = copies.correlations(small[0], small[1:2])[0]
    assert first == pytest.approx(expected) == pytest.approx(second) and expected > 0.85 > different


def test_only_flat_images_agree_with_flat_ones() -> None:
    gray, black = np.full((64, 64), 100, np.uint8), np.zeros((64, 64), np.uint8)
    texture = np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)
    assert copies.correlations(gray, np.stack([black, texture])).tolist() == [1, 0]


@pytest.mark.parametrize("k", [1, 4, 40])
def test_neighbour_pairs_are_those_of_a_dense_product(k) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(30, 5))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T - 2 * np.eye(30)
    ranked = np.argsort(-cosines, axis=1)[:, : min(k, 29)]
    expected = sorted({(min(i, j), max(i, j)) for i in range(30) for j in ranked[i].tolist()})
    pairs = copies.neighbour_pairs(features, features, k)
    assert list(map(tuple, pairs.tolist())) == expected
    np.testing.assert_allclose(copies.cosines_of(features, pairs), cosines[tuple(pairs.T)], atol=1e-6)
    above = [pair for pair in expected if cosines[pair] >= 0.3]
    assert list(map(tuple, copies.neighbour_pairs(features, features, k, 0.3).tolist())) == above


def test_groups_follow_chains_of_pairs() -> None:
    labels = copies.groups(7, np.array([(0, 3), (3, 5), (1, 2)])).tolist()
    assert [labels.index(label) for label in labels] == [0, 1, 1, 0, 4, 0, 6]
    assert len(set(copies.groups(3, np.empty((0, 2), int)).tolist())) == 3
