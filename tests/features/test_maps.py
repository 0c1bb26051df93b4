"""Maps and neighbours, against plain NumPy."""

import numpy as np
import pytest

from cl.features import maps


@pytest.fixture
def features() -> np.ndarray:
    """Two groups of 20, around opposite directions, of different lengths."""
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(2, 8), 20, axis=0) * 4
    return ((centres + rng.normal(size=(40, 8))) * rng.uniform(0.5, 20, (40, 1))).astype(np.float32)


@pytest.mark.parametrize("most", [10_000, 10], ids=["t-SNE", "PCA"])
def test_similar_images_are_close_on_the_map(features, monkeypatch, most) -> None:
    monkeypatch.setattr(maps, "MOST", most)
    points = maps.place(features)
    assert (points.shape, points.dtype) == ((40, 2), np.float32)
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1) + np.diag(np.full(40, np.inf))
    assert ((distances.argmin(1) < 20) == (np.arange(40) < 20)).all()
    np.testing.assert_array_equal(maps.place(features), points)


def test_neighbours_are_the_most_similar_other_images(features) -> None:
    unit = features.astype(np.float64) / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T - np.diag(np.full(40, np.inf))
    ids, distances = maps.neighbours(features, k=5)
    np.testing.assert_array_equal(ids, np.argsort(-cosines)[:, :5])
    np.testing.assert_allclose(distances, 1 - np.take_along_axis(cosines, ids, 1), atol=1e-6)
    assert maps.neighbours(features[:3], k=5)[0].shape == (3, 2)


def test_two_images_have_no_map(features) -> None:
    with pytest.raises(ValueError, match="a map needs at least 3 images, found 2"):
        maps.place(features[:2])
