"""Analyses on features whose answers are known, and every analysis on methods of each sort."""

import functools
import math
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from torch import nn

from cl import charts, config
from cl.analyses import (
    Context,
    Sample,
    alignment_uniformity,
    counts_that_fit,
    embedding,
    gradient_norm,
    key_cost,
    knn_curve,
    mi_bound,
    neighbours,
    npc,
    samples,
    similarity,
    views,
)
from cl.charts import Chart, histogram
from cl.contrast import Contrast
from cl.data.reader import Reader
from cl.data.views import centre
from cl.losses import infonce
from cl.methods import Setup
from cl.runtime.kinds import kinds, module_of
from tests.support.project import ROOT, compose
from tests.support.tiny import TinyBackbone

TAU = 0.2
GENERATOR = torch.Generator().manual_seed(3)


def unit(*size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return F.normalize(torch.randn(*size, generator=GENERATOR, dtype=dtype), dim=-1)


def at_cosine(cosine: float, count: int) -> Sample:
    """A query on the first axis, its positive on it too, and `count` negatives that all have this cosine."""
    query = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    negatives = torch.tensor([[cosine, math.sqrt(1 - cosine**2), 0]] * count, dtype=torch.float64)
    logits = torch.full((1, count), cosine / TAU, dtype=torch.float64)
    return Sample(
        query,
        query,
        torch.tensor([1 / TAU], dtype=torch.float64),
        negatives,
        torch.arange(count)[None],
        logits,
    )


def test_the_bound_of_equal_negatives_is_known_and_the_margin_takes_their_number_out() -> None:
    sample = at_cosine(0.3, 64)
    for count in (1, 16, 64):
        with_margin = math.log(1 + 4096) - math.log(1 + 4096 * math.exp((0.3 - 1) / TAU))
        without = math.log(1 + count) - math.log(1 + count * math.exp((0.3 - 1) / TAU))
        assert mi_bound.bounds(sample, count, 4096, TAU).item() == pytest.approx(with_margin, rel=1e-12)
        assert mi_bound.bounds(sample, count, count, TAU).item() == pytest.approx(without, rel=1e-12)
        assert without < math.log(1 + count)


def test_the_gradient_of_equal_negatives_is_known() -> None:
    """dL/dq = (1 - p0) (k - k0) / tau, whatever the number of negatives, if there is a margin."""
    sample = at_cosine(0.3, 64)
    for count in (4, 64):
        for alpha in (4096, count):
            rest = alpha * math.exp((0.3 - 1) / TAU)
            expected = rest / (1 + rest) * math.sqrt(2 - 2 * 0.3) / TAU
            assert gradient_norm.norms(sample, count, alpha, TAU).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("alpha", [None, 300.0])
def test_bound_and_gradient_are_those_of_the_loss(alpha) -> None:
    """The loss of `cl.losses` on the same negatives, differentiated by autograd at the query taken as free."""
    contrast = Contrast(unit(6, 5), unit(6, 1, 5), unit(40, 5), torch.arange(6)[:, None], temperature=TAU)
    (sample,) = samples(contrast, 12, TAU, GENERATOR)
    for count in (3, 12):
        queries = contrast.queries.clone().requires_grad_()
        chosen = Contrast(
            queries, contrast.positives, contrast.negatives, None, sample.columns[:, :count], TAU
        )
        loss = infonce.loss(chosen, infonce.Config(kind="infonce", alpha=alpha), 0.0)
        (gradient,) = torch.autograd.grad(6 * loss, queries)
        a = alpha or count
        found = gradient_norm.norms(sample, count, a, TAU)
        torch.testing.assert_close(found, gradient.norm(dim=1))
        torch.testing.assert_close(
            mi_bound.bounds(sample, count, a, TAU).mean(), math.log(1 + a) - loss.detach()
        )
        negative = sample.logits[:, :count].logsumexp(1) + math.log(a / count)
        assert (found <= 2 / TAU * torch.sigmoid(negative - sample.positive)).all()


def test_negatives_are_drawn_among_those_that_count() -> None:
    contrast = Contrast(
        unit(30, 4), unit(30, 1, 4), unit(50, 4), torch.stack([torch.arange(30), torch.arange(30) + 20], 1)
    )
    drawn = torch.zeros(30, 50)
    for _ in range(400):
        for sample in samples(contrast, 7, 1.0, GENERATOR):
            assert all(len(set(row)) == 7 for row in sample.columns.tolist())
            torch.testing.assert_close(
                sample.logits[3], contrast.negatives[sample.columns[3]] @ contrast.queries[3]
            )
            drawn.scatter_add_(1, sample.columns, torch.ones_like(sample.columns, dtype=torch.float32))
    assert drawn.gather(1, contrast.excluded).eq(0).all()
    rest = drawn[drawn > 0]
    assert len(rest) == 30 * 48
    assert rest.mean().item() == pytest.approx(400 * 7 / 48)
    assert rest.std().item() < 12, "each as often as another: sqrt(50) is expected"


def test_numbers_of_negatives_that_there_are_not_are_said(quiet) -> None:
    contrast = Contrast(unit(4, 3), unit(4, 1, 3), unit(20, 3), torch.arange(4)[:, None])
    assert counts_that_fit([64, 16, 4], contrast, quiet) == [4, 16]
    assert "a query has 19 negatives: 64 left out" in quiet.console.file.getvalue()
    with pytest.raises(ValueError, match=r"negatives=\[64\]: a query has 19 to draw from"):
        counts_that_fit([64], contrast, quiet)


def test_the_multiplier_of_orthogonal_images_is_known() -> None:
    """Views of an image equal, images orthogonal: q = 2 (N - 1) / (exp(1 / tau) + 2 (N - 1))."""
    for n in (2, 8):
        q = npc.multiplier(torch.eye(8)[:n], torch.eye(8)[:n], TAU)
        assert q.tolist() == pytest.approx(
            [2 * (n - 1) / (math.exp(1 / TAU) + 2 * (n - 1))] * 2 * n, rel=1e-5
        )


def test_similarity_and_variance_of_views_are_known() -> None:
    """Half of the views on one axis, half on the other; all on one; and the identity for any."""
    halves = torch.eye(4)[[0, 0, 1, 1]]
    similarity, variance = views.spread(torch.stack([halves, torch.eye(4)[[2, 2, 2, 2]], unit(4, 4).float()]))
    assert similarity[:2].tolist() == pytest.approx([0.5, 1.0])
    assert variance[:2].tolist() == pytest.approx([0.125, 0.0])
    torch.testing.assert_close(variance, (1 - similarity) / 4, rtol=1e-6, atol=1e-8)
    loop = unit(3, 5, 4)
    cosines = [np.mean([float(a @ b) for a in image for b in image]) for image in loop]
    assert views.spread(loop)[0].tolist() == pytest.approx(cosines)


def test_similarity_of_orthogonal_images_is_known(tmp_path) -> None:
    """Views of an image at a cosine of 0.6, of two images at 0."""
    first = torch.eye(8)[:4]
    batches = [(first, 0.6 * first + 0.8 * torch.eye(8)[4:])] * 2
    context = SimpleNamespace(embeddings=lambda batch_size, count: iter(batches), out=tmp_path)
    config = similarity.Config(kind="similarity", batch_size=4, batches=2)
    assert similarity.analyze(config, context) == pytest.approx({"positive_mean": 0.6, "negative_mean": 0.0})
    positive, negative = Chart.load(tmp_path / "cosines.chart.json").series.values()
    assert [max(points, key=lambda point: point.y).x for points in (positive, negative)] == pytest.approx(
        [0.625, 0.025]
    )


def test_alignment_is_the_squared_distance() -> None:
    x = unit(10, 3)
    assert alignment_uniformity.alignment(x, x) == 0
    assert alignment_uniformity.alignment(x, -x) == pytest.approx(4)


def test_one_partition_for_all_keys_is_the_vanilla_loss() -> None:
    queries, keys, negatives = unit(6, 5), unit(6, 3, 5), unit(40, 5)
    written, shared, joint = (case() for case in key_cost._cases(queries, keys, negatives).values())
    torch.testing.assert_close(shared, written, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(joint, written)
    one = [case() for case in key_cost._cases(queries, keys[:, :1], negatives).values()]
    torch.testing.assert_close(one[2], one[0], rtol=1e-12, atol=1e-14)


class Colour(nn.Module):
    """An encoder that sees the mean colour alone."""

    fc_features = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def analysed(
    params: config.Params, folder: Path, out: Path, here, quiet, backbone: nn.Module | None = None, **changes
) -> Context:  # type: ignore[no-untyped-def]
    """What an analysis is given, of an untrained method."""
    torch.manual_seed(0)
    setup = Setup(backbone or TinyBackbone(), params.temperature, params.patches, 1, 0, 1)
    epochs = [{"epoch": 1.0, "loss": 8.0, "knn_top1": 50.0, "knn_embedding_top1": 40.0, "alignment": 0.4}]
    epochs += [{"epoch": 2.0, "loss": 6.0, "knn_top1": 45.0, "knn_embedding_top1": 44.0, "alignment": 0.3}]
    out.mkdir(exist_ok=True)
    usual = {
        "method": module_of("methods", params.method.kind).Method(params.method, setup).eval(),
        "views": list(params.views.values()),
        "train": Reader(str(folder), "train"),
        "val": Reader(str(folder), "val"),
        "source": params.dataset,
        "loss": params.loss,
        "scale": params.method.scale,
        "batch_size": params.optim.batch_size,
        "epochs": [row | {"uniformity": -2.0, "effective_rank": 20.0} for row in epochs],
        "seed": 0,
        "machine": here,
        "progress": quiet,
        "out": out,
    }
    return Context(**{**usual, **changes})


SMALL = {
    "npc": {"batch_sizes": [16, 32], "anchors": 64},
    "similarity": {"batch_size": 32, "batches": 2},
    "mi_bound": {"negatives": [2, 8, 16], "images": 30, "queries": 25, "batch_size": 20},
    "gradient_norm": {"negatives": [2, 8, 16], "images": 30, "queries": 25, "batch_size": 20},
    "views": {"images": 30, "augmentations": 4, "batch_size": 20},
    "alignment_uniformity": {"batch_size": 32, "batches": 2},
    "embedding": {"images": 60, "perplexity": 5},
    "key_cost": {"queries": 8, "negatives": 64, "width": 4, "keys": [1, 3]},
}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> dict[str, dict]:  # type: ignore[no-untyped-def]
    """The configuration of every analysis, by its kind."""
    names = [path.stem for path in (ROOT / "pipeline/conf/analysis").glob("*.yaml")]
    values = compose(tmp_path_factory.mktemp("conf"), f"analysis=[{','.join(names)}]")["analyses"]
    return {entry["kind"]: entry for entry in values.values()}


def test_every_analysis_has_a_configuration_and_its_formula_in_words(shipped) -> None:
    assert sorted(shipped) == kinds("analyses")
    for kind in kinds("analyses"):
        module = module_of("analyses", kind)
        assert module.__doc__
        assert module.analyze.__doc__


@functools.cache
def tiny(method: str) -> config.Params:
    sizes = ["dataset.train_patches=6", "dataset.val_patches=3", "optim.batch_size=64"]
    with tempfile.TemporaryDirectory() as folder:
        return config.check(compose(Path(folder), f"method={method}", *sizes))


CONTRASTS = {"mi_bound", "gradient_norm"}  # what they look at is the method's matter
CASES = [(kind, method) for kind in kinds("analyses") for method in ("simclr", "byol")]
CASES += [
    (kind, method)
    for kind in sorted(CONTRASTS)
    for method in ("moco_v2", "moco_v3", "simo_k16", "fast_moco", "nnclr")
]


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_every_analysis_runs_on_every_sort_of_framework(
    kind, method, shipped, shard_folder, tmp_path, here, quiet
) -> None:
    context = analysed(tiny(method), shard_folder, tmp_path / "out", here, quiet)
    module = module_of("analyses", kind)
    metrics = module.analyze(module.Config.model_validate({**shipped[kind], **SMALL.get(kind, {})}), context)
    assert 0 < len(metrics) <= 4
    assert all(math.isfinite(value) for value in metrics.values())
    drawn = list(charts.load_folder(context.out))
    assert drawn or (context.out / "neighbours.png").exists()
    for chart in drawn:
        assert all(
            math.isfinite(number)
            for points in chart.series.values()
            for point in points
            for number in point[:2]
        )
        assert chart.svg().count("<title>") == sum(map(len, chart.series.values()))


def test_the_bound_by_epoch_is_that_of_the_training(shard_folder, tmp_path, here, quiet, shipped) -> None:
    """SimCLR of 32 images has 62 negatives; its loss is logged times `scale`."""
    sizes = ["dataset.train_patches=6", "dataset.val_patches=3", "optim.batch_size=32"]
    params = config.check(compose(tmp_path, "loss=infonce", "method.scale=2", *sizes))
    context = analysed(params, shard_folder, tmp_path / "out", here, quiet)
    settings = mi_bound.Config.model_validate({**shipped["mi_bound"], **SMALL["mi_bound"]})
    mi_bound.analyze(settings, context)
    (points,) = Chart.load(context.out / "by_epoch.chart.json").series.values()
    assert [point.y for point in points] == pytest.approx([math.log(63) - 4, math.log(63) - 3], rel=1e-5)
    margin = infonce.Config(kind="infonce", alpha=1000)
    mi_bound.analyze(settings, analysed(params, shard_folder, tmp_path / "out", here, quiet, loss=margin))
    (points,) = Chart.load(context.out / "by_epoch.chart.json").series.values()
    assert points[0].y == pytest.approx(math.log(1001) - 4, rel=1e-5)


@pytest.mark.parametrize("method", ["simclr", "moco_v2", "fast_moco", "byol"])
def test_the_negatives_of_an_analysis_are_other_images_keys(
    method, shard_folder, tmp_path, here, quiet
) -> None:
    """Every query with its own image's key as positive, and without it among the negatives."""
    context = analysed(tiny(method), shard_folder, tmp_path / "out", here, quiet)
    contrast = context.contrast(30, 20)
    each = len(contrast.queries) // 30
    assert (len(contrast.negatives), each) == (30, {"simclr": 2, "fast_moco": 6}.get(method, 1))
    for query in (0, 29 * each):
        own = contrast.excluded[query].item()
        assert own == query // each
        torch.testing.assert_close(contrast.negatives[own], contrast.positives[query, 0])


def test_a_temperature_that_training_did_not_have_is_said(shard_folder, tmp_path, here, quiet) -> None:
    assert analysed(tiny("moco_v2"), shard_folder, tmp_path / "out", here, quiet).temperature(None) == 0.2
    context = analysed(tiny("byol"), shard_folder, tmp_path / "out", here, quiet)
    assert context.temperature(0.3) == 0.3
    assert quiet.console.file.getvalue() == ""
    assert context.temperature(None) == 1
    assert "temperature 1, because training had none" in quiet.console.file.getvalue()


def test_the_best_epoch_is_found(shard_folder, tmp_path, params, here, quiet) -> None:
    context = analysed(params, shard_folder, tmp_path, here, quiet)
    assert knn_curve.analyze(knn_curve.Config(kind="knn_curve"), context) == {"best": 50.0, "best_epoch": 1.0}


def test_neighbours_of_the_same_colour_are_counted_and_shown(
    shard_folder, tmp_path, params, here, quiet
) -> None:
    """By a loop over the mean colours; the picture shows the very images."""
    context = analysed(params, shard_folder, tmp_path, here, quiet, backbone=Colour())
    metrics = neighbours.analyze(neighbours.Config(kind="neighbours", rows=4, nearest=3), context)
    mean, std = np.array(params.dataset.mean), np.array(params.dataset.std)

    def colours(reader: Reader) -> np.ndarray:
        pixels = [
            centre(reader.pixels(i), params.dataset.resize, params.dataset.crop) for i in range(len(reader))
        ]
        x = (np.stack(pixels).mean((1, 2)) / 255 - mean) / std
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    nearest = np.argsort(-(colours(context.val) @ colours(context.train).T), axis=1)[:, :3]
    same = context.train.labels[nearest] == context.val.labels[:, None]
    assert metrics["same_class"] == pytest.approx(100 * same.mean(), abs=1.0)
    first = int((context.val.labels == 0).argmax())
    with Picture.open(tmp_path / "neighbours.png") as sheet:
        assert sheet.size == (70 * 4 + 12, 70 * 4)
        assert np.array_equal(
            np.asarray(sheet.crop((2, 2, 66, 66))), centre(context.val.pixels(first), 64, 64)
        )
        best = centre(context.train.pixels(int(nearest[first, 0])), 64, 64)
        assert np.array_equal(np.asarray(sheet.crop((84, 2, 148, 66))), best)


def test_the_map_holds_every_image_under_its_class(shard_folder, tmp_path, params, here, quiet) -> None:
    context = analysed(params, shard_folder, tmp_path, here, quiet)
    settings = {"kind": "embedding", "images": 50, "of": "embedding", "perplexity": 5}
    metrics = embedding.analyze(embedding.Config.model_validate(settings), context)
    assert 70 < metrics["trustworthiness"] <= 100
    chart = Chart.load(tmp_path / "map.chart.json")
    names = [context.val.manifest.classes[label] for label in context.val.labels[:50]]
    assert {name: len(points) for name, points in chart.series.items()} == {
        name: names.count(name) for name in names
    }
    with pytest.raises(ValueError, match="perplexity=30 needs more than 90 images, found 60"):
        embedding.analyze(
            embedding.Config.model_validate({**settings, "images": 90, "perplexity": 30}), context
        )


def test_batches_larger_than_the_data_are_refused(shard_folder, tmp_path, params, here, quiet) -> None:
    context = analysed(params, shard_folder, tmp_path, here, quiet)
    with pytest.raises(ValueError, match="batches of 121 images cannot come from 120"):
        next(context.embeddings(121, 1))
    assert len(context.contrast(100, 50).negatives) == 100
    with pytest.raises(
        ValueError, match="images=101: an epoch in batches of 50 has 100 images; choose as many or fewer"
    ):
        context.contrast(101, 50)


def test_a_chart_is_read_back_as_it_was(tmp_path) -> None:
    chart = Chart("a", 'less < "more"', "x & y", "%", log=True)
    chart.add("first", 1, 2.5, 0.25)
    chart.add("first", 2, 3.5, 0.5)
    chart.add("second, <b>", 1, -1)
    chart.save(tmp_path)
    assert list(charts.load_folder(tmp_path)) == [chart]
    Chart("empty", "", "", "").save(tmp_path)
    assert len(list(charts.load_folder(tmp_path))) == 1


def test_a_drawing_tells_its_values_and_shares_no_id_with_another() -> None:
    chart = Chart("a", 'less < "more"', "x & y", "%")
    for x in (1, 2, 4):
        chart.add("first, <b>", x, x / 3, 0.1)
        chart.add("second", x, -x)
    other = histogram("b", "t", "v", {"one": np.random.default_rng(0).normal(size=500)})
    pages = [chart.svg(), other.svg()]
    marks = ElementTree.fromstring(pages[0]).iter("{http://www.w3.org/2000/svg}use")
    told = [(float(mark.get("x")), mark[0].text) for mark in marks if len(mark)]
    assert [text for _, text in sorted(told)] == [
        *("first, <b>, x & y 1: 0.3333 ± 0.1", "second, x & y 1: -1"),
        *("first, <b>, x & y 2: 0.6667 ± 0.1", "second, x & y 2: -2"),
        *("first, <b>, x & y 4: 1.333 ± 0.1", "second, x & y 4: -4"),
    ]
    ids = [re.findall(r' id="([^"]+)"', page) for page in pages]
    assert not set(ids[0]) & set(ids[1])
    for page, own in zip(pages, ids, strict=True):
        assert len(own) == len(set(own))
        assert set(re.findall(r'(?:href="|url\()#([\w-]+)', page)) <= set(own)
        assert "#888888" not in page
    assert pages[1] == other.svg(), "the same bytes every time"
    densities = [point.y for point in other.series["one"]]
    width = other.series["one"][1].x - other.series["one"][0].x
    assert sum(densities) * width == pytest.approx(1)
