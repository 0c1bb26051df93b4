"""On a GPU, a step leaves the CPU free to prepare the next one."""

from dataclasses import replace

import pytest
import torch

from cl.runtime.machine import Machine
from tests.support.counting import GPU, Counting
from tests.support.methods import CASES, Case, build, case_name, on, task_of, train_step, training_batch

HERE = Machine(GPU, 0, "fp32")


@pytest.mark.parametrize("groups", [False, True], ids=["", "groups"])
@pytest.mark.parametrize("case", [case for case in CASES if case[1] == {}], ids=case_name)
def test_no_step_waits_for_the_gpu(case: Case, groups: bool) -> None:
    """From the second step on: the first counts negatives, and estimates what memory banks need."""
    assert_no_wait(case, torch.arange(16) // 2 if groups else None)


@pytest.mark.parametrize("case", [case for case in CASES if case[1] != {}], ids=case_name)
def test_no_option_makes_a_step_wait(case: Case) -> None:
    assert_no_wait(case, None)


def assert_no_wait(case: Case, groups: torch.Tensor | None) -> None:
    kind, option, cut = case
    task = task_of(build(kind, cut=cut, **option), here=HERE).to(GPU).train()
    for step in range(2):
        batch = on(GPU, replace(training_batch(kind, option, 16, step), groups=groups))
        with Counting() as counting:
            train_step(task, step, batch)
    assert not counting.waits
