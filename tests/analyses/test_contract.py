"""Every analysis on methods of each kind of term, and what its context provides."""

import math

import pytest
import torch

from cl import config
from cl.analyses import gradient_norm
from cl.report import charts
from cl.runtime.registry import kinds, module_of
from tests.support.analyses import SMALL, tiny_params
from tests.support.devices import on_all_devices
from tests.support.objective import l2_normalize
from tests.support.project import compose

CASES = [(kind, method) for kind in kinds("analyses") for method in ("simclr", "byol")]
CASES += [
    ("gradient_norm", method)  # its queries and keys depend on the method
    for method in ("moco_v3", "simo_k16", "nnclr")
]


@on_all_devices
@pytest.mark.parametrize(("kind", "method"), CASES)
def test_every_analysis_runs_on_every_kind_of_method(kind, method, shipped, analysed) -> None:
    context = analysed(tiny_params(method))
    module = module_of("analyses", kind)
    config = module.Config.model_validate({**shipped[kind], **SMALL.get(kind, {})})
    metrics = module.analyze(config, context)
    assert set(metrics) <= set(config.numbers()), "a number without an explanation"
    assert 0 < len(metrics) <= 6
    assert all(math.isfinite(value) for value in metrics.values())
    drawn = [charts.Chart.load(path) for path in sorted(context.out.glob("*.chart.json"))]
    assert drawn or (context.out / "pictures/0-0.jpg").exists()
    for chart in drawn:
        assert all(
            math.isfinite(number)
            for points in chart.series.values()
            for point in points
            for number in point[:2]
        )
        assert chart.svg().count("<title>") == sum(map(len, chart.series.values()))


@pytest.mark.parametrize("method", ["simclr", "moco_v2", "fast_moco", "byol"])
def test_the_negatives_of_an_analysis_are_keys_of_other_images(method, analysed) -> None:
    """The positive of a query is its own image's key, which is not among its negatives."""
    context = analysed(tiny_params(method))
    contrast = context.contrast(30, 20)
    each = len(contrast.queries) // 30
    assert (len(contrast.negatives.rows), each) == (30, {"simclr": 2, "fast_moco": 6}.get(method, 1))
    for query in (0, 29 * each):
        own = contrast.negatives.excluded[query].item()
        assert own == query // each
        torch.testing.assert_close(contrast.negatives.rows[own], contrast.positives[query, 0])


def test_the_negatives_may_be_the_queue_as_training_left_it(analysed, shipped) -> None:
    """With all of its keys drawn, the mean norm is that of the loss, differentiated in float64."""
    context = analysed(tiny_params("moco_v2"))
    keys = context.method.queue.rows = l2_normalize(16, context.method.queue.rows.shape[1]).float()
    contrast = context.contrast(25, 20, queue=True)
    assert torch.equal(contrast.negatives.rows, keys)
    torch.testing.assert_close(contrast.queries, context.contrast(30, 20).queries[:25])
    settings = {**shipped["gradient_norm"], **SMALL["gradient_norm"], "keys": "queue", "negatives": [16, 99]}
    gradient_norm.analyze(gradient_norm.Config.model_validate(settings), context)
    margin, _, plain, _ = charts.Chart.load(context.out / "norms.chart.json").series.values()
    for alpha, (point,) in ((settings["alpha"], margin), (16, plain)):
        queries = contrast.queries.double().requires_grad_()
        positive = (queries * contrast.positives[:, 0].double()).sum(1) / 0.2
        negative = (queries @ keys.double().T / 0.2).logsumexp(1) + math.log(alpha / 16)
        (gradient,) = torch.autograd.grad(torch.logaddexp(positive, negative).sum() - positive.sum(), queries)
        assert point.y == pytest.approx(gradient.norm(dim=1).mean().item(), rel=1e-4)


def test_a_queue_that_the_method_lacks_is_refused_before_training(tmp_path) -> None:
    wanted = ("analysis=[gradient_norm]", "analyses.gradient_norm.keys=queue")
    assert config.check(compose(tmp_path, "method=moco_v1", *wanted)).method.gives >= {"queue"}
    with pytest.raises(
        ValueError, match=r"analyses.gradient_norm.keys=queue needs a queue, which .*nnclr lacks"
    ):
        config.check(compose(tmp_path, "method=nnclr", *wanted))


def test_an_assumed_temperature_is_reported(analysed, quiet) -> None:
    assert analysed(tiny_params("moco_v2")).temperature(None) == 0.2
    context = analysed(tiny_params("byol"))
    assert context.temperature(0.3) == 0.3
    assert quiet.console.file.getvalue() == ""
    assert context.temperature(None) == 1
    assert "using temperature 1, because training used none" in quiet.console.file.getvalue()
