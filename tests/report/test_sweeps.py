"""Sweeps: lines join experiments that differ in one number alone."""

from itertools import product

import pytest

from cl.report.sweeps import sweeps
from tests.support.experiments import KNN, TABLE3, experiment, measured


def test_a_sweep_joins_experiments_that_differ_in_one_number() -> None:
    metrics = iter([60.0, 62.0, 70.0, 64.0, 66.0, 50.0])
    runs = [
        ("infonce", 32, 0),
        ("infonce", 32, 1),
        ("infonce", 64, 0),
        ("dcl", 32, 0),
        ("dcl", 64, 0),
        ("dcl", 128, 0),
    ]
    found = []
    for loss, batch, seed in runs:
        run = f"recipe=dcl/table3_cifar10 loss={loss}"
        found.append(experiment(loss, run, next(metrics), seed=seed, optim__batch_size=batch))
    found[-1] = experiment("else", TABLE3, 50.0, optim__batch_size=128, temperature=0.5)
    (chart,) = sweeps(found)
    assert (chart.x, chart.y) == ("optim.batch_size", f"{KNN}, %")
    assert {label: [(point.x, point.y) for point in points] for label, points in chart.series.items()} == {
        "infonce": [(32, 61), (64, 70)],
        "dcl": [(32, 64), (64, 66)],
    }
    assert chart.series["infonce"][0].sd == pytest.approx(2**0.5)
    assert not list(sweeps(found[:2])), "different seeds are not a sweep"


def test_a_sweep_does_not_mix_protocols_or_data() -> None:
    ks = [20, 20, 200]
    found = [
        experiment(f"{n}", TABLE3, 50.0 + n, optim__batch_size=32 * 2**n, evaluations__knn_200__k=k)
        for n, k in enumerate(ks)
    ]
    (chart,) = sweeps(found)
    assert [(point.x, point.y) for points in chart.series.values() for point in points] == [
        (32, 50),
        (64, 51),
    ]
    found[1].provenance["prepare"]["data_manifest_sha256"] = "e"
    assert not list(sweeps(found))


def test_a_label_of_many_parameters_is_the_name_of_an_experiment() -> None:
    found = [
        experiment(f"{views}-{rate}", f"views={views}", [measured("knn", "top1", rate)], optim__base_lr=rate)
        for views, rate in product(("small", "small_multicrop"), (1.0, 2.0))
    ]
    (chart,) = sweeps(found)
    assert list(chart.series) == ["small-1.0 and 1 more", "small_multicrop-1.0 and 1 more"]
