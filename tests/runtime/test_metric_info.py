"""Numbers of a result: means over seeds, and DVC's names for them."""

import pytest

from cl.runtime.metric_info import MetricInfo, Share, flat, measurements

INFOS = {
    "top1": MetricInfo("top-1", "how many are right", "higher"),
    "labels": MetricInfo("labels used", "how many"),
    "base_lr": MetricInfo("base learning rate", "of the best"),
}
RUNS = [
    {"backbone": {"top1": top1, "labels": 20, "base_lr": rate}, "pixels": {"top1": Share(30.0, 20 * top1)}}
    for top1, rate in ((60.0, 0.1), (63.0, 0.3), (57.0, 0.1))
]


def test_several_seeds_give_means_and_deviations_but_settings_are_never_averaged() -> None:
    top1, labels, pixels = measurements("evaluate", "linear", RUNS, INFOS)
    assert (top1.mean, top1.sd, top1.n) == (60.0, pytest.approx(3.0), 3)
    assert (labels.mean, labels.sd) == (20.0, None)
    assert (pixels.representation, pixels.title) == ("pixels", "top-1, raw pixels")
    assert (top1.images, pixels.images) == (None, 1200), "the mean over the seeds"
    assert "base_lr" not in {top1.metric, labels.metric, pixels.metric}, "the seeds chose different ones"


def test_dvc_sees_flat_names() -> None:
    """One seed has no deviation and keeps its settings."""
    several = measurements("evaluate", "linear", RUNS, INFOS)
    one = measurements("evaluate", "linear_2", RUNS[:1], INFOS)
    random = [each._replace(baseline="random") for each in several[:1]]
    assert list(flat([*several, *one, *random]).items()) == [
        ("linear_top1", 60.0),
        ("linear_top1_sd", 3.0),
        ("linear_labels", 20.0),
        ("linear_pixels_top1", 30.0),
        ("linear_pixels_top1_sd", 0.0),
        ("linear_n", 3.0),
        ("linear_2_top1", 60.0),
        ("linear_2_labels", 20.0),
        ("linear_2_base_lr", 0.1),
        ("linear_2_pixels_top1", 30.0),
        ("random_linear_top1", 60.0),
        ("random_linear_top1_sd", 3.0),
        ("random_linear_n", 3.0),
    ]
