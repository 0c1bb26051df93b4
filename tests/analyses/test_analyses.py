"""Analyses of features whose answers are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from cl.analyses import (
    alignment_uniformity,
    bands,
    embedding,
    gradient_norm,
    neighbours,
    npc,
    views,
)
from cl.data.reader import Reader
from cl.data.views import View, centre
from cl.report.charts import Chart
from cl.runtime.registry import module_of
from cl.runtime.tensor_files import save_tensors
from pipeline.support.locations import transform
from tests.support.analyses import SMALL, tiny_params
from tests.support.files import read_csv
from tests.support.objective import l2_normalize
from tests.support.tiny import Colour

TAU = 0.2
FEATURES = ["embedding", "backbone"]


def test_the_share_of_easy_pairs_is_known() -> None:
    """Of eight anchors, the two most similar have 0.1 and 0.3 of 4."""
    q = np.array([0.6, 0.1, 0.6, 0.6, 0.3, 0.6, 0.6, 0.6])
    similarity = np.array([0.1, 0.9, 0.2, 0.3, 0.8, 0.0, 0.1, 0.2])
    assert npc.easy_share(q, similarity) == pytest.approx(10.0)


def test_similarity_and_variance_of_views_are_known() -> None:
    """Half of the views on one axis, half on the other; all on one; and the identity for any."""
    halves = torch.eye(4)[[0, 0, 1, 1]]
    similarity, variance = views.spread(
        torch.stack([halves, torch.eye(4)[[2, 2, 2, 2]], l2_normalize(4, 4).float()])
    )
    assert similarity[:2].tolist() == pytest.approx([0.5, 1.0])
    assert variance[:2].tolist() == pytest.approx([0.125, 0.0])
    torch.testing.assert_close(variance, (1 - similarity) / 4, rtol=1e-6, atol=1e-8)
    loop = l2_normalize(3, 5, 4)
    cosines = [np.mean([float(a @ b) for a in image for b in image]) for image in loop]
    assert views.spread(loop)[0].tolist() == pytest.approx(cosines)


@pytest.mark.parametrize("of", FEATURES)
def test_the_views_that_are_compared_are_those_of_the_chosen_features(of, analysed, shipped) -> None:
    """Whose width is (1 - similarity) / variance."""
    context = analysed(tiny_params("simclr"))
    config = views.Config.model_validate({**shipped["views"], **SMALL["views"], "of": of})
    found = views.analyze(config, context)
    network, projector = context.method.evaluated
    features = network(torch.zeros(2, 3, 32, 32, device=context.machine.device))
    expected = (features if of == "backbone" else projector(features)).shape[1]
    assert (1 - found["similarity"]) / found["variance"] == pytest.approx(expected, rel=0.01)


def test_alignment_is_the_squared_distance() -> None:
    x = l2_normalize(10, 3)
    assert alignment_uniformity.alignment(x, x) == 0
    assert alignment_uniformity.alignment(x, -x) == pytest.approx(4)


def test_gradients_are_measured_at_the_kept_epochs(analysed, shipped, tmp_path) -> None:
    """Each as of a run that ended there; the finished method is left as it was."""
    settings = gradient_norm.Config.model_validate({**shipped["gradient_norm"], **SMALL["gradient_norm"]})
    context = analysed(tiny_params("moco_v2"))
    expected, kept, ratios, generator = {}, {}, [], torch.Generator().manual_seed(3)
    for epoch in (20, 3, 40):  # 3 as the first, although written second; 40 is the finished run
        for parameter in context.method.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
        ratios.append(gradient_norm.analyze(settings, context)["bound_ratio"])
        expected[epoch] = Chart.load(context.out / "norms.chart.json").series
        assert not (context.out / "by_epoch_margin.chart.json").exists()
        kept[epoch] = tmp_path / f"{epoch}.safetensors"
        save_tensors(context.method.state_dict(), kept[epoch])
    del kept[40]
    context = replace(context, kept=kept, epochs=[{"epoch": 40.0}])
    found = gradient_norm.analyze(settings, context)
    assert found["bound_ratio"] == pytest.approx(max(ratios)) and max(ratios) != ratios[-1]
    assert Chart.load(context.out / "norms.chart.json").series == expected[40]
    for name, label in (("margin", "with the margin, alpha 65536"), ("plain", "without the margin")):
        drawn = Chart.load(context.out / f"by_epoch_{name}.chart.json").series
        for number, count in enumerate((2, 8, 16)):
            points = [(epoch, *expected[epoch][label][number][1:]) for epoch in (3, 20, 40)]
            assert drawn[f"{count} negatives"] == points
        bound = [(epoch, expected[epoch][f"bound {label}"][0].y, None) for epoch in (3, 20, 40)]
        assert drawn.get("bound") == (bound if name == "margin" else None)


@pytest.mark.parametrize(
    ("kind", "of", "changes"),
    [
        ("neighbours", {}, True),
        *((kind, {"of": of}, of == "backbone") for kind in ("embedding", "views") for of in FEATURES),
        ("alignment_uniformity", {}, False),
        ("npc", {}, False),
    ],
)
def test_a_start_that_is_handed_over_and_what_was_trained_do_not_mix(
    kind, of, changes, analysed, shipped
) -> None:
    """Features are those of the encoder that is handed over; embeddings are the finished method's."""
    context, module = analysed(tiny_params("simclr")), module_of("analyses", kind)
    config = module.Config.model_validate({**shipped[kind], **SMALL.get(kind, {}), **of})
    found, of_start = (
        module.analyze(config, replace(context, backbone=backbone))
        for backbone in (context.backbone, Colour())
    )
    assert (of_start != found) == changes


@pytest.mark.parametrize(("bank", "queries", "tile"), [(None, None, None), (70, 40, None), (70, 40, 64)])
def test_neighbours_of_the_same_colour_are_counted_and_shown(analysed, params, bank, queries, tile) -> None:
    """As by a loop over the mean colours; the picture shows exactly these images."""
    context = analysed(params, backbone=Colour())
    for reader in (context.train, context.val):
        reader.manifest.storage["tile"] = tile
    known, asked = context.train.evaluated(bank), context.val.evaluated(queries)
    metrics = neighbours.analyze(
        neighbours.Config(kind="neighbours", rows=4, bank=bank, queries=queries), context
    )
    mean, std = np.array(params.dataset.mean), np.array(params.dataset.std)

    def colours(reader: Reader) -> np.ndarray:
        pixels = [
            centre(reader.pixels(i), params.dataset.resize, params.dataset.crop) for i in range(len(reader))
        ]
        x = (np.stack(pixels).mean((1, 2)) / 255 - mean) / std
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    nearest = np.argsort(-(colours(context.val)[asked] @ colours(context.train)[known].T), axis=1)[:, :8]
    same = context.train.labels(known)[nearest] == context.val.labels(asked)[:, None]
    assert metrics["same_class"] == pytest.approx(100 * same.mean(), abs=1.0)
    first = int((context.val.labels(asked) == 0).argmax())
    lines = read_csv(context.out / "pictures/pictures.csv")
    names = context.train.manifest.classes
    assert len(lines) == 4 * (1 + 8)
    best = known[nearest[first, 0]]
    mark = "right" if same[first, 0] else "wrong"
    for line, reader, position, expected in (
        (lines[0], context.val, asked[first], ""),
        (lines[1], context.train, best, mark),
    ):
        assert (line["row"], line["title"], line["mark"]) == ("0", names[0], expected)
        assert line["caption"] == names[reader.labels()[position]]
        with Picture.open(context.out / "pictures" / line["file"]) as picture:
            shown = np.asarray(picture).astype(int)
        assert np.abs(shown - centre(reader.pixels(position), 96, 96)).mean() < 8, "JPEG of the image"


def test_patches_of_a_jigsaw_are_not_views_of_an_image(analysed, params) -> None:
    """PIRL's first view is the image; what analyses compare are views like it."""
    usual = params.views["random"]
    image = usual.model_copy(update={"count": 1})
    for size in (usual.size, 10):
        cut = {**usual.model_dump(), "count": 9, "size": size, "jigsaw": {"grid": 3, "side": 96}}
        context = analysed(params, views=[image, View(**cut)])
        assert context._large(3) == [image] * 3
    assert analysed(params)._large(3) == [image] * 3


def test_the_map_contains_every_image_under_its_class(analysed, params) -> None:
    context = analysed(params)
    settings = {"kind": "embedding", "images": 50, "of": "embedding", "perplexity": 5}
    metrics = embedding.analyze(embedding.Config.model_validate(settings), context)
    assert 70 < metrics["trustworthiness"] <= 100
    chart = Chart.load(context.out / "map.chart.json")
    names = [context.val.manifest.classes[label] for label in context.val.labels()[:50]]
    assert {name: len(points) for name, points in chart.series.items()} == {
        name: names.count(name) for name in names
    }


class Ramps(Reader):
    """Images of 50 columns, whose values are a thousand times the columns' numbers."""

    def pixels(self, position: int) -> np.ndarray:
        return np.broadcast_to(1000 * np.arange(50, dtype=np.uint16)[:, None], (40, 50, 5))


def test_histograms_of_large_images_are_of_all_columns(analysed, params, band_folder, monkeypatch) -> None:
    monkeypatch.setattr(bands, "PIXELS", 40)  # of 2,000: each fiftieth is in the first column
    reader = Ramps(band_folder, "train")
    context = analysed(params, train=reader, transform=transform(params.dataset, reader))
    bands.analyze(bands.Config(kind="bands", images=1000), context)
    for points in Chart.load(context.out / "bands.chart.json").series.values():
        assert sum(point.y > 0 for point in points) > 10


def test_histograms_of_bands_are_those_of_all_values_with_data(analysed, params, band_folder) -> None:
    reader = Reader(band_folder, "train")
    context = analysed(params, train=reader, transform=transform(params.dataset, reader))
    metrics = bands.analyze(bands.Config(kind="bands", images=1000), context)
    pixels = np.stack([reader.pixels(position) for position in range(len(reader))]).reshape(-1, 5)
    known = pixels[(pixels > 0).all(1)].astype(np.float64)  # 0 is a pixel without data
    assert metrics["missing"] == pytest.approx(100 * (pixels == 0).mean())
    values = (known - known.mean(0)) / known.std(0)
    low, high = np.percentile(values, [0.5, 99.5])
    series = Chart.load(context.out / "bands.chart.json").series
    assert list(series) == ["1", "2", "3", "4", "5"]
    for points, column in zip(series.values(), values.T, strict=True):
        expected, _ = np.histogram(column, 40, (low, high), density=True)
        assert np.allclose([point.y for point in points], expected, atol=0.01)
        assert low < points[0].x < points[-1].x < high
