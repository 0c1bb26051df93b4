"""Instance retrieval, against a loop over all images."""

import numpy as np
import pytest
import torch

from cl.config import check
from cl.data.reader import Reader
from cl.data.views import RandomNumbers, View, centre, random_crop_box, resize
from cl.evaluations import retrieval
from tests.support.files import read_csv
from tests.support.project import TINY, compose
from tests.support.tiny import Colour, evaluated


@pytest.fixture
def config(tmp_path) -> retrieval.Config:
    """Crops and flips only, of 20 images."""
    plain = [f"evaluations.retrieval.views.random.{name}=0.0" for name in ("jitter.p", "grayscale")]
    values = compose(tmp_path, *TINY, "evaluation=[retrieval]", "evaluations.retrieval.queries=20", *plain)
    return check(values).evaluations["retrieval"]


def nearest_places(config: retrieval.Config, reader: Reader, params) -> dict[str, int]:  # type: ignore[no-untyped-def]
    """The place of each image among all, by the mean colour of a crop of it."""
    mean, std = np.array(params.dataset.mean), np.array(params.dataset.std)
    (view,) = config.views.values()

    def l2_normalize(pixels: np.ndarray) -> np.ndarray:
        x = (pixels.mean((0, 1)) / 255 - mean) / std
        return x / np.linalg.norm(x)

    bank = np.stack([l2_normalize(centre(reader.pixels(i), 32, 32)) for i in range(len(reader))])
    places = {}
    for position, key in enumerate(reader.keys.tolist()):
        similarity = bank @ l2_normalize(crop_of(view, reader, position))
        places[key.decode()] = int((similarity > similarity[position]).sum()) + 1
    return places


def crop_of(view: View, reader: Reader, position: int) -> np.ndarray:
    pixels, out = reader.pixels(position), np.empty((1, view.size, view.size, 3), np.uint8)
    resize(pixels, random_crop_box(pixels.shape[:2], view.area, RandomNumbers(0, 0, position, 0)), view, out)
    return out[0]


@pytest.mark.parametrize("batch", [256, 16])
def test_an_image_counts_as_found_if_it_is_among_the_nearest(
    batch, config, shard_folder, params, tmp_path, monkeypatch
) -> None:
    """All 20 images are looked up, even if they do not fill batches."""
    monkeypatch.setattr(retrieval, "BATCH", batch)
    reader = Reader(shard_folder, "val")
    monkeypatch.setattr(retrieval, "NEAREST", (1, 5, len(reader)))
    context = evaluated(reader, reader, params, Colour(), tmp_path)
    metrics = retrieval.evaluate(config, context)
    expected = nearest_places(config, reader, params)
    rows = read_csv(tmp_path / "images.csv")
    found = {row["image"]: row["place"] for row in rows}
    assert len(found) == 20
    shown = {key: str(place) for key, place in expected.items()}
    agreeing = sum(place == shown[key] for key, place in found.items())
    assert agreeing >= 19  # rounding may swap two of nearly equal colour
    places = [int(place) for place in found.values()]
    assert metrics["backbone"]["hit1"] == 100 * np.mean(np.array(places) == 1)
    assert metrics["backbone"]["hit5"] == 100 * np.mean(np.array(places) <= 5)
    assert metrics["pixels"]["hit1"] == 5 * sum(row["pixels"] == "1" for row in rows)
    assert f"hit{len(reader)}" not in metrics["backbone"], "all images are among as many"


def test_an_encoder_of_constants_finds_by_chance(config, shard_folder, params, tmp_path) -> None:
    class Constant(Colour):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(x), 3)

    reader = Reader(shard_folder, "val")
    metrics = retrieval.evaluate(config, evaluated(reader, reader, params, Constant(), tmp_path))
    assert metrics["backbone"]["hit5"] <= 50
    assert metrics["pixels"]["hit1"] > metrics["backbone"]["hit1"]
