"""On a GPU, a step leaves the CPU free to prepare the next one."""

from dataclasses import replace

import pytest
import torch

from cl.networks import backbones
from cl.networks.batch_norm import set_groups, update_running_stats
from cl.networks.two_streams import NORMALISATION
from cl.runtime.machine import Machine
from tests.support.backbones import DATASET, SHIPPED, shipped
from tests.support.counting import GPU, Counting
from tests.support.methods import CASES, Case, build, case_name, on, task_of, train_step, training_batch

HERE = Machine(GPU, 0, "fp32")


@pytest.mark.parametrize(
    "groups", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["groups", "no groups"]
)
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


@pytest.mark.parametrize("name", SHIPPED)
def test_no_backbone_waits(name: str) -> None:
    """Forward and backward; two networks in each colour space."""
    config = shipped(name)
    streams = getattr(config, "streams", None)
    spaces = [{"streams": streams.model_copy(update={"space": space})} for space in NORMALISATION if streams]
    for change in spaces or [{}]:
        with GPU:
            network = backbones.build(config.model_copy(update=change)).train()
        set_groups(network, 2)
        images = torch.empty(4, 3, DATASET["crop"], DATASET["crop"], device=GPU)
        with Counting() as counting:
            network(images).sum().backward()
            update_running_stats(network)
        assert any(name.endswith("_backward") for name in counting.operations)
        assert not counting.waits
