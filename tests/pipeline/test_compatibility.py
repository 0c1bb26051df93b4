"""Every method with every loss, with and without multi-crop and patches: it runs, or is refused with a sentence."""

import re

import pytest
import torch

from cl import config
from cl.methods import Setup
from cl.pretraining.task import PretrainingTask
from cl.runtime import machine
from cl.runtime.kinds import kinds, module_of
from pipeline import compatibility
from tests.support.project import ROOT
from tests.support.tiny import TinyBackbone

CELLS = compatibility.cells()
RUNNING = [cell for cell in CELLS if not cell.refusal]


def name(cell: compatibility.Cell) -> str:
    return f"{cell.method}-{cell.loss}-{cell.views}-{cell.patches}"


def expected(cell: compatibility.Cell) -> str:
    """What must be said of a cell, as a pattern; empty where it must run. Written from the papers, not from the checks."""
    negatives = cell.method not in ("byol", "simsiam")
    if cell.loss == "cosine" and negatives:
        return f"loss=cosine does not look at the negatives that method={cell.values['method']['kind']} gives"
    if cell.loss != "cosine" and not negatives:
        return f"method={cell.method} gives no negatives, which loss={cell.loss} needs; choose loss=cosine"
    if cell.loss == "jcl" and cell.method != "moco_v2_keys":
        return "loss=jcl needs the covariance of several keys an image"
    if cell.method == "moco_v2_keys" and cell.views == "multi-crop":
        return "method=moco takes 7 views of one size first (with keys=rest all views after the first are keys), found 32 px"
    if cell.patches == "patches" and cell.method not in ("moco_v3", "byol", "simsiam", "nnclr"):
        return f"method={cell.values['method']['kind']} takes no combinatorial patches"
    return ""


@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_what_runs_and_what_is_refused(cell) -> None:
    if pattern := expected(cell):
        assert pattern in cell.refusal
    else:
        assert not cell.refusal


@pytest.mark.parametrize("cell", RUNNING, ids=name)
def test_every_cell_that_runs_is_trained_a_step(cell) -> None:
    """With the sizes of its own parameters, on a tiny encoder: finite, and a gradient for every trained tensor."""
    params = config.check(cell.values)
    torch.manual_seed(0)
    setup = Setup(TinyBackbone(), params.temperature, params.patches, 2, 0)
    method = module_of("methods", params.method.kind).Method(params.method, setup)
    here = machine.Machine(torch.device("cpu"), 0, "fp32")
    task = PretrainingTask(
        method, module_of("losses", params.loss.kind), params.loss, params.method.scale, here
    )
    task.begin_step(0, 0.5)
    loss = task([torch.randn(8, 3, size, size) for size in params.view_sizes], torch.zeros(0))
    loss.backward()
    assert torch.isfinite(loss)
    for key, parameter in task.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, key
    task.after_step(0.6)


def test_the_cross_holds_all_methods_and_losses() -> None:
    assert {cell.values["method"]["kind"] for cell in CELLS} == set(kinds("methods"))
    assert set(compatibility.LOSSES) == set(kinds("losses"))


def test_the_readme_shows_the_table() -> None:
    shown = re.search(r"<!-- cross -->\n(.*?)\n<!-- end -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown
    assert shown[1].strip() == compatibility.table(CELLS), "python -m pipeline.compatibility prints the table"
