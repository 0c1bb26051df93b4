"""The schedule of a transfer."""

import pytest

from cl.training.optim import lr_factor
from tests.support.detection import small


def test_the_schedule_is_the_papers_scaled_to_the_batch(params) -> None:
    """VOC at 8 images instead of 16: half the rate; twice the iterations, warm-up and drops."""
    changes = {
        "iterations": 24000,
        "milestones": [18000, 22000],
        "warmup": 100,
        "base_lr": 0.02,
        "reference_batch": 16,
    }
    config = small(params, "voc_c4", **changes, batch_size=8)
    for images in (16551, 300):
        solver = config.solver(images // 8)
        assert solver.peak_lr == 0.01
        assert round(solver.epochs * (images // 8)) == 48000

        rates = {0: 0.001, 100: 0.5005, 200: 1, 35999: 1, 36000: 0.1, 43999: 0.1, 44000: 0.01, 47999: 0.01}
        found = {step: lr_factor(solver, step, 48000, images // 8) for step in rates}
        assert found == pytest.approx(rates)


def test_every_drop_comes_at_its_iteration(params) -> None:
    """The loop takes drops as fractions of the run, which rounding could move by a step."""
    for iterations in (90000, 87950, 1003):
        for milestone in range(7, iterations, 997):
            config = small(params, iterations=iterations, milestones=[milestone])
            solver = config.solver(111)
            assert lr_factor(solver, milestone - 1, iterations, 111) == 1
            assert lr_factor(solver, milestone, iterations, 111) == pytest.approx(0.1)


def test_a_transfer_is_called_after_the_data_that_it_was_tested_on(params) -> None:
    for data, named in (("scenes", True), ("raw", False)):
        for name, benchmark in (("voc_c4", "VOC's 2007/test"), ("coco_c4", "COCO's val2017")):
            config = small(params, name, data=data)
            assert ("embedded scenes" in config.title) == ("embedded scenes" in config.about) == named
            assert (benchmark in config.about) != named
