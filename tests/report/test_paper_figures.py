"""The papers' figures, drawn from our experiments."""

import math

import pytest

from cl.report.curves import information
from cl.report.summary import page
from pipeline.report import title
from tests.support.experiments import composed, curve, experiment, measured


def test_a_papers_figure_overlays_the_charts_of_matching_experiments() -> None:
    """DCL, Fig. 4: both losses in one chart, seeds averaged, without experiments that differ otherwise."""
    runs = [f"recipe=dcl/fig4_cifar10 loss={loss}" for loss in ("infonce", "dcl")]
    found = [curve("a", runs[0], 50), curve("b", runs[1], 60), curve("c", runs[1], 64, seed=1)]
    found += [curve("short", runs[1], 10, optim__epochs=1), curve("other", runs[1], 11, optim__monitor__k=1)]
    found += [curve("part", runs[1], 12)]
    found[-1].metrics["train_images"] = 100
    html, _ = page(found, lambda run: composed(run) if "fig4_cifar10" in run else {}, title)
    assert "infonce, features, epoch 1: 50<" in html
    assert "dcl, features, epoch 1: 62 ± 2.83<" in html
    assert html.count("features, epoch 1:") == 2


def test_the_bound_on_mutual_information_is_that_of_the_training() -> None:
    """EqCo, Fig. 1: the limit is alpha's with margin and the queue's without; losses are logged scaled.

    Other losses and methods, which lack alpha or a queue, have no bound.
    """
    runs = ["recipe=eqco/fig1 method.queue=64", "recipe=eqco/fig1 loss=infonce method.queue=64"]
    limits = math.log(65537), math.log(65)
    others = ["recipe=eqco/fig1 loss=dcl", "recipe=fast_moco/table1"]
    found = [experiment(run, run, [measured("moco_lin", "top1", 50.0)]) for run in (*runs, *others)]
    for each in found:
        each.epochs.append({"epoch": "1", "loss": "2.5"})
    html, _ = page(found, lambda run: composed(run) if "fig1" in run else {}, title)
    assert all(f"epoch 1: {limit - 2.5:.4g}<" in html for limit in limits)
    assert html.count("bound, epoch 1: ") == 2
    found[0].params["method"]["scale"] = 2
    assert information(found[0]).series["bound"][0].y == pytest.approx(limits[0] - 1.25)
