"""Every method with every loss, with and without multi-crop and patches, runs or is refused."""

import pytest
import torch

from benchmarks.combinations import Cell, cells, composed, methods
from cl import config
from cl.methods import Setup
from cl.pretraining.task import PretrainingTask
from cl.runtime.registry import kinds, module_of
from tests.support.methods import HERE, batch_of, teacher_of
from tests.support.tiny import TinyBackbone

WITHOUT_NEGATIVES = {"byol": "pairs", "simsiam": "pairs", "two_views": "two views"}
IN_BATCH = {"cpc_v2", "exemplar", "invariant_spread", "moco_v3", "nnclr", "simclr", "simo"}
MEMORIES = {"local_aggregation", "moco", "moco_cld", "npid_cld"}
BANKS, PROTOTYPES = {"cmc", "npid", "pirl"}, {"dino", "swav"}
WITH_NEGATIVES = IN_BATCH | MEMORIES | BANKS | PROTOTYPES
PREDICTING = {"byol", "moco_v3", "nnclr", "simsiam"}
CONTRASTIVE_LOSSES = {"infonce", "dcl", "dclw", "debiased", "invariant_spread", "jcl", "nce", "sigmoid"}
OTHER_LOSSES = {"cosine": "pairs", "barlow_twins": "two views", "vicreg": "two views"}


def expected(cell: Cell) -> tuple[str, ...] | None:
    """What the refusal of a cell says, nothing if it runs; None for methods and losses not listed above.

    Written from the papers, not from the checks.
    """
    method, loss = cell.values["method"]["kind"], cell.values["loss"]["kind"]
    if method not in WITH_NEGATIVES | {*WITHOUT_NEGATIVES} or loss not in CONTRASTIVE_LOSSES | {
        *OTHER_LOSSES
    }:
        return None
    given, needed = (
        f"{kinds[name]} without" if name in kinds else "contrasts with"
        for name, kinds in ((method, WITHOUT_NEGATIVES), (loss, OTHER_LOSSES))
    )
    if given != needed:
        return (
            f"method.kind={method} gives {given} negatives",
            f"loss={loss} needs {needed} negatives",
            "loss=",
        )
    if loss == "nce" and method not in BANKS:
        return "loss=nce needs a memory bank", "choose", "of the kinds cmc, npid, pirl"
    several = cell.values["method"].get("keys") == "rest"
    if loss == "jcl" and not several:
        return "loss=jcl needs several positives", f"method.kind={method}", "choose"
    if method in PROTOTYPES and loss not in ("dcl", "dclw"):
        return f"method.kind={method} needs a decoupled loss", f"loss={loss}", "choose loss=dcl or dclw"
    return _expected_of_views(cell, method, several)


def _expected_of_views(cell: Cell, method: str, several: bool) -> tuple[str, ...]:
    if cell.views == "multi-crop" and method == "pirl":
        return ("found 2 x random, 4 x half; choose views=pirl or views=pirl_small",)
    if cell.views == "multi-crop" and (several or method == "moco_cld"):
        return f"the first {7 if several else 3} views of method.kind={method}", "need one size, found 32 px"
    if cell.patches == "patches" and method not in PREDICTING:
        return f"method.kind={method} does not take combinatorial patches", "choose patches=whole"
    return ()


@pytest.mark.parametrize("method", methods())
def test_combinations_run_or_are_refused_as_in_the_papers(method) -> None:
    for cell in cells(method):
        parts = expected(cell)
        if parts is not None:
            assert all(part in cell.refusal for part in parts), cell
            assert bool(parts) == bool(cell.refusal), cell


@pytest.mark.slow
@pytest.mark.parametrize("method", methods())
def test_combinations_that_run_train_a_step(method) -> None:
    for cell in cells(method):
        if not cell.refusal:
            train_one_step(cell.values)


@pytest.mark.parametrize("method", methods())
def test_every_method_trains_a_step_as_shipped(method) -> None:
    train_one_step(composed(f"method={method}"))


def train_one_step(values: dict) -> None:
    """At its own sizes on a tiny encoder: a finite loss, and a gradient for every trained tensor."""
    params = config.check(values)
    torch.manual_seed(0)
    about = params.temperature, params.patches, 2, 0, 8
    setup = Setup(TinyBackbone(), *about, teacher=teacher_of(params.method))
    method = module_of("methods", params.method.kind).Method(params.method, setup)
    loss = module_of("losses", params.loss.kind)
    task = PretrainingTask(method, loss, params.loss, params.method.scale, HERE)
    task.begin_epoch(1)  # prototypes are frozen in epoch 0
    task.begin_step(0, 0.5)
    value = task(batch_of([torch.randn(8, 3, size, size) for size in params.view_sizes]))
    value.backward()
    assert torch.isfinite(value)
    for key, parameter in task.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, key
    task.after_step(0.6)


def test_every_method_and_every_loss_runs_somewhere() -> None:
    running = [cell.values for method in methods() for cell in cells(method) if not cell.refusal]
    assert {values["method"]["kind"] for values in running} == set(kinds("methods"))
    assert {values["loss"]["kind"] for values in running} == set(kinds("losses"))
