"""Experiments: what counts as the same measurement, and means over seeds."""

import copy

import pytest

from cl.report.comparisons import measured_rows
from cl.report.experiments import (
    changed_params,
    distinct,
    headline_metrics,
    is_same_measurement,
    judged_together,
    mean_over_seeds,
    varying_keys,
    varying_params,
)
from cl.statistics import interval
from tests.support.experiments import KNN, TABLE3, composed, experiment, knn_200, measured


def test_a_number_counts_for_a_recipe_only_with_its_settings() -> None:
    params, number = composed(TABLE3), knn_200(80.0)
    assert is_same_measurement(number, params, params)
    for free in (
        {"seed": 7},
        {"precision": "bf16"},
        {"optim__microbatches": 2},
        {"dataset__encode": "copy"},
    ):
        assert is_same_measurement(number, params, experiment("", TABLE3, [], **free).params), free
    for other in (
        {"optim__batch_size": 128},
        {"optim__epochs": 20},
        {"temperature": 0.2},
        {"dataset__kind": "cifar100"},
        {"dataset__encode": "jpeg"},
        {"backbone__stem": "imagenet"},
        {"evaluations__knn_200__k": 20},
        {"loss": {"kind": "infonce", "alpha": None}},
        {"teacher": {"name": "torchvision:resnet50", "hash": "sha256:0"}},
        {"hand_over": "better"},
        {"arms": [{"optim": {"base_lr": 0.1}}]},
    ):
        assert not is_same_measurement(number, params, experiment("", TABLE3, [], **other).params), other
    linear = measured("linear", "top1", 80.0)
    assert not is_same_measurement(linear, params, params), "the recipe does not run this evaluation"


def test_a_baseline_counts_only_with_its_weights_and_a_teacher_with_its_own() -> None:
    params, number = copy.deepcopy(composed(TABLE3)), knn_200(80.0, baseline="other")
    for training, weights, teacher in ((None, "a", None), ("teacher", None, "a")):
        one = params | {"baselines": {"other": {"training": training, "weights": weights}}}
        one["teacher"] = {"name": teacher}
        changed = copy.deepcopy(one)
        assert is_same_measurement(number, one, changed)
        changed["baselines"]["other"]["weights"] = weights and "b"
        changed["teacher"]["name"] = teacher and "b"
        assert not is_same_measurement(number, one, changed), training


def test_parameters_of_today_leave_older_experiments_the_same() -> None:
    params, number = copy.deepcopy(composed("recipe=eqco/table1")), knn_200(80.0)
    older = {key: value for key, value in params.items() if key not in ("arms", "teacher", "ungrouped")}
    older["loss"] = {key: value for key, value in params["loss"].items() if key != "positives"}
    older["evaluations"] = params["evaluations"] = composed(TABLE3)["evaluations"]
    assert is_same_measurement(number, params, older)


def test_a_transfer_counts_only_with_the_same_engine_and_all_images() -> None:
    run = "recipe=eqco/table8"
    params, number = composed(run), measured("coco_fpn", "box_ap", 31.0, stage="transfer")
    random, supervised = (number._replace(baseline=name) for name in ("random", "supervised"))
    assert is_same_measurement(number, params, params)
    for change in ({"engine": "torchvision"}, {"subset": 100}):
        changes = {f"transfers__coco_fpn__{key}": value for key, value in change.items()}
        assert not is_same_measurement(number, params, experiment("", run, [], **changes).params)
    other_loss = experiment("", run, [], loss={"kind": "dcl"}).params
    assert not is_same_measurement(number, params, other_loss)
    assert is_same_measurement(random, params, other_loss), "a baseline does not depend on the loss"
    deeper = experiment("", run, [], backbone__name="resnet18").params
    assert not is_same_measurement(random, params, deeper)
    longer = copy.deepcopy(params)
    longer["baselines"]["supervised"]["training"]["optim"]["epochs"] = 1
    assert not is_same_measurement(supervised, params, longer)


def test_metrics_of_evaluations_with_similar_names_are_told_apart() -> None:
    """The same name may be a baseline's number or another evaluation's: what was recorded decides."""
    numbers = [measured("knn", "top1", 1.0), measured("knn", "top1", 2.0, representation="embedding")]
    numbers += [knn_200(3.0), measured("knn", "200_embedding_top1", 4.0, baseline="random")]
    numbers += [measured("views", "variance", 5.0, stage="analyze")]
    made = experiment("a", TABLE3, numbers)
    assert [made.find(name).mean for name in ("knn_top1", "knn_embedding_top1", KNN)] == [1.0, 2.0, 3.0]
    assert made.find(KNN, "random").mean == 4.0
    assert made.find("knn_top5") is None
    assert headline_metrics([made]) == ["knn_top1", KNN], "one of each evaluation, none of analyses"
    other = experiment("b", TABLE3, [measured("knn", "top5", 6.0), numbers[0]])
    assert headline_metrics([made, other]) == ["knn_top1", KNN, "knn_top5"], "of each experiment"


def test_seeds_are_averaged_and_each_counts_once() -> None:
    values = [(0, 80.0), (1, 83.0), (0, 99.0)]
    found = [experiment(str(n), TABLE3, value, seed=seed) for n, (seed, value) in enumerate(values)]
    both = mean_over_seeds(found, KNN)
    assert (both.mean, both.n, both.names) == (81.5, 2, ("0", "1"))
    assert both.sd == pytest.approx(3 / 2**0.5)
    one = mean_over_seeds(found[:1], KNN)
    assert (one.mean, one.sd, one.n, one.names) == (80, None, 1, ("0",))
    assert mean_over_seeds([], KNN) is None
    repeated = mean_over_seeds([experiment("r", TABLE3, [knn_200(80.0, sd=0.4, n=5)])], KNN)
    assert (repeated.mean, repeated.sd, repeated.n, repeated.names) == (80, 0.4, 5, ("r",))


def test_transfers_on_other_detection_data_are_neither_averaged_nor_compared() -> None:
    run, number = "recipe=eqco/table8", measured("coco_fpn", "box_ap", 31.0, stage="transfer")
    found = [experiment(str(seed), run, [number], seed=seed) for seed in range(3)]
    for each, digest in zip(found, "aab", strict=True):
        each.provenance["transfer/coco_fpn"] = {"data_sha256": digest}
    assert mean_over_seeds(found, "coco_fpn_box_ap").names == ("0", "1")
    assert varying_keys([row for row, _ in measured_rows("coco_fpn_box_ap", found)]) == ["data"]


def test_the_interval_of_a_mean_uses_the_images_that_its_evaluation_counted() -> None:
    random = knn_200(30.0, images=1000, baseline="random")
    plain, counted = (experiment("", TABLE3, [knn_200(80.0, images=n), random]) for n in (None, 1000))
    assert mean_over_seeds([plain], KNN).interval is None
    assert mean_over_seeds([counted], KNN).interval == interval(80, 1000)
    assert mean_over_seeds([counted], KNN, "random").interval == interval(30, 1000)


def test_an_applied_experiment_and_the_workspace_count_once() -> None:
    first, again = (experiment(name, TABLE3, 80.0) for name in ("exp", "workspace"))
    other = experiment("other", TABLE3, 81.0, seed=1)
    assert [e.name for e in distinct([first, again, other])] == ["exp", "other"]
    again.metrics.pop(KNN)
    assert [e.name for e in distinct([first, again, other])] == ["exp", "other"], "with fewer numbers too"
    assert [e.name for e in distinct([again, first, other])] == ["exp", "other"], "in any order"
    assert varying_params([first, other]) == ["seed"]


def test_parameters_that_changed_since_a_result_was_made_are_named() -> None:
    assert changed_params({"parameters": {"a.b": 1, "c": 2}}, {"a": {"b": 1}, "c": 3}) == ["c"]
    assert changed_params({}, {"a": 1}) == []


def test_runs_judged_on_the_same_held_out_images_are_counted() -> None:
    """Equal parameters give the same run; other images and unlabelled ones are not counted."""

    def judged(key: str, data: str = "d", rows: int = 1) -> dict:
        return {
            "run_key": key,
            "data_manifest_sha256": data,
            "adaptation": {"rows": [{}] * rows, "paid_runs": 3},
        }

    def others(*provenance: dict) -> list:
        made = [experiment(str(number), "seed=0", []) for number in range(len(provenance))]
        for each, pretraining in zip(made, provenance, strict=True):
            each.provenance["pretrain"] = pretraining
        return made

    own = judged("a")
    assert judged_together(own, others(own, judged("b", data="e"), judged("c", rows=0), {})) == ""
    assert judged_together(judged("a", rows=0), others(judged("b", rows=0))) == ""
    two = judged_together(own, others(judged("b")))
    assert two.startswith("2 runs were judged") and "hold out" not in two
    assert "hold out other images" in judged_together(own, others(judged("b"), judged("c")))
