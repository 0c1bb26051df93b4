"""Colour jitter: its plain form, and its kernels, interpreted on the CPU and compiled for an absent GPU."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision.transforms.functional as tv
from torch import Tensor

from cl.data import augment_gpu
from cl.data.views import DRAWS, ColourParams
from tests.support import interpreted_jitter

triton = pytest.importorskip("triton")

COLUMNS = {name: number for number, name in enumerate(ColourParams._fields)}
TYPES = {"block_size": "constexpr", "images": "i32", "pixels": "i32", "order": "*i64"}


def interpret(*arguments: str) -> str:
    """What the kernels print in Triton's interpreter."""
    command = [sys.executable, interpreted_jitter.__file__, *arguments]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def reference(image: Tensor, row: Tensor) -> Tensor:
    """One image through torchvision."""
    params = ColourParams(*row.tolist())
    operations = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
    for number in map(int, params.jitter_order if params.jitter else ()):
        image = operations[number](image, params.factors[number])
    return image


def test_both_forms_equal_torchvisions_operations_in_every_order(tmp_path: Path) -> None:
    """Each image takes a block of pixels and part of a second; the last but one is gray, the last stays."""
    orders = list(itertools.permutations(range(4)))
    rng = torch.Generator().manual_seed(0)
    rows = torch.zeros(len(orders) + 2, DRAWS)
    rows[:-1, COLUMNS["jitter"]] = 1
    rows[:, COLUMNS["first"] : COLUMNS["fourth"] + 1] = torch.tensor([*orders, *orders[:2]])
    rows[:, COLUMNS["brightness"] : COLUMNS["hue"]] = 0.2 + 1.6 * torch.rand(len(rows), 3, generator=rng)
    rows[:, COLUMNS["hue"]] = torch.rand(len(rows), generator=rng) - 0.5
    x = torch.rand(len(rows), 3, 33, 32, generator=rng)
    x[-2] = 0.4
    torch.save((x, rows), tmp_path / "images")
    interpret(str(tmp_path / "images"))
    by_kernels = torch.load(tmp_path / "images")
    places, ends = augment_gpu.sorted_by_hue(ColourParams(*rows.unbind(1)))
    assert ends == [6, 12, 18, 25]
    plain = torch.empty_like(x)
    plain[places] = augment_gpu._jitter(x[places], ColourParams(*rows[places].unbind(1)), ends)
    theirs = torch.stack([reference(image, row) for image, row in zip(x, rows, strict=True)])
    for found in (by_kernels, plain):
        torch.testing.assert_close(found, theirs, atol=5e-6, rtol=0)
        assert torch.equal(found[-1], x[-1])


@pytest.mark.slow
def test_a_gpu_that_computes_as_the_cpu_uses_the_kernels() -> None:
    assert float(interpret()) < augment_gpu.NATIVE.tolerance / 10


@pytest.mark.parametrize("name", ["_measure", "_change"])
def test_kernels_compile_for_a_gpu(name, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from cl.data import _native_jitter

    kernel = getattr(_native_jitter, name)
    signature = {argument: TYPES.get(argument, "*fp32") for argument in kernel.arg_names}
    source = ASTSource(kernel, signature, {"block_size": _native_jitter.BLOCK})
    assert triton.compile(source, GPUTarget("cuda", 90, 32)).asm["cubin"]
