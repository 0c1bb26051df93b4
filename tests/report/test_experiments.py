"""Experiments: what counts as the same measurement, and means over seeds."""

import copy

import pytest

from cl.report.experiments import (
    changed_params,
    distinct,
    entry_of,
    is_same_measurement,
    mean_over_seeds,
    varying_params,
)
from cl.report.intervals import interval
from tests.support.experiments import KNN, TABLE3, composed, experiment


def test_a_number_counts_for_a_recipe_only_with_its_settings() -> None:
    params = composed(TABLE3)
    assert is_same_measurement(KNN, params, params)
    for free in (
        {"seed": 7},
        {"precision": "bf16"},
        {"optim__microbatches": 2},
        {"evaluations__knn_200__memory": "1GiB"},
    ):
        assert is_same_measurement(KNN, params, experiment("", TABLE3, {}, **free).params), free
    for other in (
        {"optim__batch_size": 128},
        {"optim__epochs": 20},
        {"temperature": 0.2},
        {"dataset__kind": "cifar100"},
        {"backbone__stem": "imagenet"},
        {"evaluations__knn_200__k": 20},
        {"loss": {"kind": "infonce", "alpha": None}},
    ):
        assert not is_same_measurement(KNN, params, experiment("", TABLE3, {}, **other).params), other
    assert not is_same_measurement("linear_top1", params, params), "the recipe does not run this evaluation"


def test_a_transfer_counts_only_with_the_same_engine_and_all_images() -> None:
    run = "recipe=eqco/table8"
    params, metric = composed(run), "coco_fpn_box_ap"
    assert is_same_measurement(metric, params, params)
    assert not is_same_measurement(
        metric, params, experiment("", run, {}, transfers__coco_fpn__engine="torchvision").params
    )
    assert not is_same_measurement(
        metric, params, experiment("", run, {}, transfers__coco_fpn__subset=100).params
    )
    other_loss = experiment("", run, {}, loss={"kind": "dcl"}).params
    assert not is_same_measurement(metric, params, other_loss)
    assert is_same_measurement("random_coco_fpn_box_ap", params, other_loss, "random"), (
        "a baseline does not depend on the loss"
    )
    deeper = experiment("", run, {}, backbone__name="resnet18").params
    assert not is_same_measurement("random_coco_fpn_box_ap", params, deeper, "random")
    longer = copy.deepcopy(params)
    longer["baselines"]["supervised"]["training"]["optim"]["epochs"] = 1
    assert not is_same_measurement("supervised_coco_fpn_box_ap", params, longer, "supervised")


def test_metrics_of_evaluations_with_similar_names_are_told_apart() -> None:
    params = {"evaluations": {"knn": {}, "knn_200": {}}, "transfers": {"voc_c4": {}}}
    assert entry_of("knn_200_top1", params) == ("evaluations", "knn_200")
    assert entry_of("knn_top1", params) == ("evaluations", "knn")
    assert entry_of("voc_c4_ap50", params) == ("transfers", "voc_c4")
    assert entry_of("npc_mean_32", params) is None


def test_seeds_are_averaged_and_each_counts_once() -> None:
    found = [
        experiment(str(n), TABLE3, {KNN: value}, seed=seed)
        for n, (seed, value) in enumerate([(0, 80), (1, 83), (0, 99)])
    ]
    mean, sd, n, names, _ = mean_over_seeds(found, KNN)
    assert (mean, n, names) == (81.5, 2, ["0", "1"])
    assert sd == pytest.approx(3 / 2**0.5)
    assert mean_over_seeds(found[:1], KNN)[:4] == (80, None, 1, ["0"])
    assert mean_over_seeds([], KNN) is None
    repeated = experiment("r", TABLE3, {KNN: 80, f"{KNN}_sd": 0.4, "knn_200_n": 5})
    assert mean_over_seeds([repeated], KNN)[:4] == (80, 0.4, 5, ["r"])


def test_the_interval_of_a_mean_uses_the_images_that_its_evaluation_counted() -> None:
    plain, counted = (experiment(name, TABLE3, {KNN: 80}) for name in ("a", "b"))
    numbers = {KNN.removeprefix("knn_200_"): {"images": 1000}}
    counted.provenance["evaluate/knn_200"] = {"explained": {"numbers": numbers}}
    assert mean_over_seeds([plain], KNN).interval is None
    assert mean_over_seeds([counted], KNN).interval == interval(80, 1000)
    baseline = {"random_knn_200_embedding_top1": 30.0}
    counted.metrics.update(baseline)
    counted.provenance["baseline/random"] = {"explained": {"knn_200": {"numbers": numbers}}}
    found = mean_over_seeds([counted], next(iter(baseline)), "random")
    assert found.interval == interval(30, 1000)


def test_repeats_of_a_baselines_evaluation_are_counted() -> None:
    metrics = {"random_coco_fpn_box_ap": 31.0, "random_coco_fpn_box_ap_sd": 0.3, "random_coco_fpn_n": 5}
    found = mean_over_seeds(
        [experiment("r", "recipe=eqco/table8", metrics)], "random_coco_fpn_box_ap", "random"
    )
    assert (found.mean, found.sd, found.n) == (31.0, 0.3, 5)


def test_an_applied_experiment_and_the_workspace_count_once() -> None:
    first, again = (experiment(name, TABLE3, {KNN: 80}) for name in ("exp", "workspace"))
    other = experiment("other", TABLE3, {KNN: 81}, seed=1)
    assert [e.name for e in distinct([first, again, other])] == ["exp", "other"]
    again.metrics.pop(KNN)
    assert [e.name for e in distinct([first, again, other])] == ["exp", "other"], "with fewer numbers too"
    assert [e.name for e in distinct([again, first, other])] == ["exp", "other"], "in any order"
    assert varying_params([first, other]) == ["seed"]


def test_parameters_that_changed_since_a_result_was_made_are_named() -> None:
    assert changed_params({"parameters": {"a.b": 1, "c": 2}}, {"a": {"b": 1}, "c": 3}) == ["c"]
    assert changed_params({}, {"a": 1}) == []
