"""Batch norm over ranks by the kernels of SyncBatchNorm, which exist for CUDA only.

`tests.support.batch_norm_kernels` states their formulas for a CPU; no test here runs the kernels themselves.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from cl.networks import _reference_batch_norm, _sync_batch_norm
from cl.networks.batch_norm import GroupBatchNorm
from tests.support import batch_norm_kernels, batch_norm_ranks
from tests.support.batch_norm_ranks import CASES, computed, expected

assert batch_norm_kernels.LIBRARY


def assert_equal(found: dict[str, Any], other: dict[str, Any]) -> None:
    for key in ("rows", "parameters", "state"):
        for a, b in zip(found[key], other[key], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.shares])
def test_one_process_exchanges_nothing(name) -> None:
    found = computed(CASES[name])
    assert_equal(found, expected(CASES[name]))
    assert found["collectives"] == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What processes have computed."""
    folder = tmp_path_factory.mktemp("ranks")
    batch_norm_ranks.run(folder)
    return folder


@pytest.mark.parametrize(("form", "exchanges"), [("kernels", 2), ("reference", 3)])
@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, case in CASES.items() for number in (2, 4) if len(case.shares) in (0, number)],
)
def test_ranks_compute_what_the_definition_says(folder, name, number, form, exchanges) -> None:
    found = batch_norm_ranks.of_ranks(number, form, folder)[name]
    assert_equal(found, expected(CASES[name]))
    exchanges -= not CASES[name].to_rows
    assert found["collectives"] == (exchanges if CASES[name].groups % number else 0)


class _Calls(TorchDispatchMode):
    """The calls of batch-norm kernels, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "batch_norm" in str(function):
            copies = [x.detach().clone() if isinstance(x, Tensor) else x for x in args]
            self.calls.append((str(function), copies))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def process_group(tmp_path) -> Iterator[None]:
    """Of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_batch_norm_group_calls_the_kernels_as_pytorch_does(process_group) -> None:
    """`nn.SyncBatchNorm` calls the same kernels in the same order with equal arguments."""
    rng = torch.Generator().manual_seed(0)
    rows, g = torch.randn(2, 8, 3, 4, 4, generator=rng)
    rows, g = (each.contiguous(memory_format=torch.channels_last) for each in (rows, g))
    affine = torch.rand(2, 3, generator=rng).requires_grad_()
    moments = torch.zeros(2, 3)
    found = []
    for form in ("ours", "theirs"):
        x = rows.detach().requires_grad_()
        with _Calls() as mode:
            if form == "ours":
                y, _ = _sync_batch_norm.normalise(x, *affine, 0.01, 1)
            else:
                y = SyncBatchNorm.apply(x, *affine, *moments, 0.01, 1.0, dist.group.WORLD, 1)
            gradients = torch.autograd.grad(y, (x, affine), g)
        found.append((mode.calls, [y, *gradients]))
    (ours, results), (theirs, expected_results) = found
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    assert len(ours) == 5
    for (name, arguments), (_, others) in zip(ours, theirs, strict=True):
        for a, b in zip(arguments, others, strict=True):
            if name == "aten.batch_norm_backward_elemt.default" and b is others[-1]:
                b = b.flatten()  # the numbers of elements: theirs are (W, 1)
            torch.testing.assert_close(a, b, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}")
    torch.testing.assert_close(results, expected_results, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 3])
def test_types(dtype, groups, process_group) -> None:
    """A bfloat16 network has parameters and statistics in float32; the kernels refuse other types."""
    single = torch.promote_types(dtype, torch.float32)
    x = torch.randn(6, 4, 5, 5).to(dtype).requires_grad_()
    affine = torch.ones(2, 4, dtype=single, requires_grad=True)
    y, statistics = _sync_batch_norm.normalise(x, *affine, 1e-5, groups)
    to_x, to_affine = torch.autograd.grad(y, (x, affine), torch.ones_like(y))
    for found, like in ((y, x), (to_x, x), (to_affine, affine)):
        assert (found.shape, found.dtype) == (like.shape, like.dtype)
    assert (statistics.shape, statistics.dtype) == ((2, groups, 4), single)


def test_other_devices_than_cuda_use_the_reference(process_group) -> None:
    class Spanning(GroupBatchNorm):
        def spans_ranks(self) -> bool:
            return True

    norm, x = Spanning(nn.BatchNorm2d(3), 1), torch.randn(4, 3, 2, 2)
    with _Calls() as mode:
        norm(x).sum().backward()
    assert not any("batch_norm_stats" in name for name, _ in mode.calls)


def test_rows_and_gradients_in_any_layout(process_group) -> None:
    """Rows with gaps, and gradients that are expanded or laid out otherwise; the kernels refuse these."""
    rng = torch.Generator().manual_seed(0)
    wide = torch.randn(8, 6, 4, 4, generator=rng, dtype=torch.float64)
    affine = torch.rand(2, 3, generator=rng, dtype=torch.float64)
    dense = wide[:, :3].contiguous()
    channels_last = dense.contiguous(memory_format=torch.channels_last)
    for rows in (wide[:, ::2], dense, channels_last):
        for g in (dense, channels_last, wide[:, :3, :1, :1].expand(8, 3, 4, 4)):
            x = rows.detach().requires_grad_()
            y, _ = _sync_batch_norm.normalise(x, *affine, 0.01, 2)
            (to_x,) = torch.autograd.grad(y, x, g)
            reference, _ = _reference_batch_norm.normalise(x, *affine, 0.01, 2, spans=False)
            torch.testing.assert_close(y, reference, rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(to_x, torch.autograd.grad(reference, x, g)[0], rtol=1e-11, atol=1e-11)
