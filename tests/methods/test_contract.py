"""The contract that every method on disk keeps, with every loss that fits it."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from tests.support import golden
from tests.support.devices import on_all_devices
from tests.support.methods import (
    CASES,
    USUAL,
    as_type,
    build,
    cells,
    loss_config,
    on,
    takes_columns,
    task_of,
    train_step,
    training_batch,
    usual_name,
    with_columns,
)

IDS = [usual_name(*cell) for cell in USUAL]


@on_all_devices
@pytest.mark.parametrize(("case", "loss_kind"), USUAL, ids=IDS)
def test_every_method_trains_saves_and_continues_equal(case, loss_kind, here) -> None:
    """Two steps with batches of different sizes, a copy through the state dict, then another step of both.

    Images have groups, and values where these are taken, which are remembered with their rows in queues and
    banks.
    """
    kind, option, cut = case
    columns = takes_columns(kind, loss_kind)
    methods = [build(kind, cut=cut, bn_groups=2, within=columns, **option) for _ in range(2)]
    first, second = (task_of(method, loss_config(loss_kind), here).to(here.device) for method in methods)
    before = copy.deepcopy(first.state_dict())
    batches = [training_batch(kind, option, n, number) for number, n in enumerate((4, 6, 6))]
    batches = [on(here.device, replace(b, groups=torch.arange(len(b.labels)) % 5 - 1)) for b in batches]
    if columns:
        batches = [on(here.device, with_columns(b, number, k=2)) for number, b in enumerate(batches)]
    for number in range(2):
        train_step(first, number, batches[number])
    second.load_state_dict(first.state_dict())
    for one in (first, second):
        train_step(one, 2, batches[2])
    tolerance = 0 if here.device.type == "cpu" else 1e-9  # a GPU adds in any order
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], tensor, rtol=tolerance, atol=tolerance)
    assert any(not torch.equal(before[name], tensor) for name, tensor in first.state_dict().items())


@on_all_devices
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("case", "loss_kind"), cells(CASES))
def test_every_method_runs_with_every_loss_and_a_batch_of_two(case, loss_kind, precision, here) -> None:
    """Loss and gradients are finite and float32, and every trained tensor gets a gradient."""
    kind, option, cut = case
    batch = on(here.device, as_type(training_batch(kind, option, 2, 0), torch.float32))
    method = build(kind, cut=cut, **option).float()
    here = replace(here, precision=precision)
    task = task_of(method, loss_config(loss_kind), here).to(here.device)
    task.begin_epoch(1)  # prototypes are frozen in epoch 0
    task.begin_step(0, 0.5)
    loss = task(batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    for key, parameter in task.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, key
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), key
    task.after_step(0.6)


@on_all_devices
@pytest.mark.parametrize(("case", "loss_kind"), USUAL, ids=IDS)
def test_ten_steps_give_the_golden_values(case, loss_kind, here) -> None:
    """A refactoring leaves them as they were; `make golden` adds those of a new method."""
    expected = json.loads(golden.FILE.read_text())
    name = usual_name(case, loss_kind)
    assert name in expected, "make golden"
    tolerance = 1e-10 if here.device.type == "cpu" else 1e-7
    assert golden.measure(case, loss_kind, here) == pytest.approx(expected[name], rel=tolerance)
