"""Steps of methods, backbones and recipes in bfloat16 on a GPU that is not there.

From the second step on, none makes the CPU wait: the first counts negatives, and estimates what memory banks
need. Operations on tensors of two devices, or of types that do not fit, raise; so do kernels' forms that
PyTorch refuses on CUDA. Values, the kernels themselves and DistributedDataParallel are not tested.
"""

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.roofline.backward import backward
from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from benchmarks.gpu.roofline.trace import trace
from benchmarks.parameters import parameters
from cl.runtime.machine import Machine
from tests.support.backbones import SHIPPED
from tests.support.methods import (
    CASES,
    WHOLE,
    Case,
    as_type,
    build,
    case_name,
    on,
    takes_columns,
    task_of,
    train_step,
    training_batch,
    usual_losses,
    with_columns,
)
from tests.support.project import ROOT

HERE = Machine(GPU, 0, "bf16")
CONF = ROOT / "pipeline/conf"
FAST = {"timm"}  # tests/benchmarks/test_bounds.py traces other kinds


def is_fast(case: Case) -> bool:
    """Patches with one method, and options that take few operations."""
    kind, option, cut = case
    return (cut == WHOLE or kind == "moco_v3") and (kind != "cpc_v2" or option == {})


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case_name(case), marks=[] if is_fast(case) else [pytest.mark.slow])
        for case in CASES
    ],
)
def test_a_step_of_every_method(case: Case) -> None:
    """At a tiny size; images have groups unless an option is set, and values where these are taken."""
    kind, option, cut = case
    groups = None if option else torch.arange(16) // 2
    count = 1 if kind == "cpc_v2" else 3  # whose views are grids by themselves
    batches = [replace(training_batch(kind, option, 16, step, count), groups=groups) for step in range(2)]
    if columns := takes_columns(kind, usual_losses(kind)[0]):
        batches = [with_columns(batch, step, k=4) for step, batch in enumerate(batches)]
    with FakeGpu() as gpu:
        task = task_of(build(kind, cut=cut, within=columns, **option).float(), here=HERE).to(GPU).train()
        for step, batch in enumerate(batches):
            here = on(GPU, as_type(batch, torch.float32))
            gpu.may_wait = step == 0
            train_step(task, step, here, backward)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in SHIPPED]
)
def test_a_step_of_every_backbone(name) -> None:
    method = "cmc" if "lab" in name else "simclr"
    size = "views.random.size=32" if "patch4" in name or "small" in name else "views.random.size=224"
    overrides = (f"method={method}", f"backbone={name}", size, "precision=bf16", "optim.batch_size=32")
    assert trace(parameters(*overrides)).operations
