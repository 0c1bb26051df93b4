"""Colour jitter by fused kernels, interpreted on the CPU and compiled for an absent GPU."""

import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torchvision.transforms.functional as tv

import cl.data
from cl.data.to_device import HostBatch, ToDevice
from cl.data.views import DRAWS, ColourParams
from pipeline.support.locations import transform

COLUMNS = {name: number for number, name in enumerate(ColourParams._fields)}
TYPES = {"block_size": "constexpr", "images": "i32", "pixels": "i32", "order": "*i64"}
IN_INTERPRETER = """
import sys
import torch
from cl.data.to_device import ToDevice
for fused in (False, True):
    transform, view, here, batch = torch.load(sys.argv[1 + fused], weights_only=False)
    torch.save(ToDevice(transform, [view], here)(batch).views[0], sys.argv[1 + fused])
    print("triton" in sys.modules)
from cl.data.augment_gpu import fused_jitter
from cl.data.views import ColourParams
params = ColourParams(*batch.colour_params[0, :4].unbind(1))
x = batch.images[0][:4] / 255
layouts = torch.contiguous_format, torch.channels_last
first, last = (fused_jitter(x.clone(memory_format=layout), params) for layout in layouts)
print(torch.equal(first, last))
"""


def test_kernels_equal_torchvisions_operations_in_every_order(params, here, tmp_path) -> None:
    """Each image takes a block of pixels and part of a second; the last but one is gray, the last stays.

    Without `fused`, OpenCV's operations on the CPU give the same, and Triton is not even imported. The
    kernels take images in either layout.
    """
    pytest.importorskip("triton")
    orders = list(itertools.permutations(range(4)))
    rng = torch.Generator()
    print("seed", rng.seed())  # other images and factors each time; pytest shows it if the test fails
    rows = torch.zeros(len(orders) + 2, DRAWS)
    rows[:-1, COLUMNS["jitter"]] = 1
    rows[:, COLUMNS["first"] : COLUMNS["fourth"] + 1] = torch.tensor([*orders, *orders[:2]])
    rows[:, COLUMNS["brightness"] : COLUMNS["hue"]] = 0.2 + 1.6 * torch.rand(len(rows), 3, generator=rng)
    rows[:, COLUMNS["hue"]] = torch.rand(len(rows), generator=rng) - 0.5
    images = torch.randint(0, 256, (len(rows), 3, 33, 32), generator=rng, dtype=torch.uint8)
    images[-2] = 100
    numbers = torch.arange(len(rows))
    batch = HostBatch([images], rows[None], numbers, numbers, None, None, None)
    view = params.views["random"].model_copy(update={"order": ("jitter",)})
    plain = transform(params.dataset).model_copy(update={"mean": (0, 0, 0), "std": (1, 1, 1)})
    files = [tmp_path / "usual", tmp_path / "fused"]
    for fused, path in enumerate(files):
        torch.save((plain, view, replace(here, fused=bool(fused)), batch), path)
    command = [sys.executable, "-c", IN_INTERPRETER, *map(str, files)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    assert subprocess.check_output(command, env=environment, text=True).split() == ["False", "True", "True"]
    operations = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
    for found in map(torch.load, files):
        for image, row, result in zip(images / 255, rows, found, strict=True):
            column = ColourParams(*row.tolist())
            for number in map(int, column.jitter_order if column.jitter else ()):
                image = operations[number](image, column.factors[number])
            torch.testing.assert_close(result, image, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("architecture", "aligned"),
    [
        pytest.param(number, aligned, marks=[] if number in fast else [pytest.mark.slow])
        for aligned, fast in ((True, {75, 90}), (False, {80}))
        for number in (75, 80, 86, 89, 90, 100, 103, 120)
    ],
)
def test_kernels_compile_for_a_gpu_and_stay_in_registers(
    architecture, aligned, tmp_path, monkeypatch, capfd
) -> None:
    """For addresses and sizes that are multiples of 16, as most are, and for any."""
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DUMP_PTXAS_LOG", "1")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from cl.data import _fused_jitter

    kernels = [each for each in vars(_fused_jitter).values() if hasattr(each, "arg_names")]
    entries = [each for each in kernels if "pixels" in each.arg_names and "block_size" in each.arg_names]
    assert len(entries) == 2
    for kernel in entries:
        signature = {argument: TYPES.get(argument, "*fp32") for argument in kernel.arg_names}
        multiples = {(number,): [["tt.divisibility", 16]] for number in range(len(signature) - 1)}
        source = ASTSource(
            kernel, signature, {"block_size": _fused_jitter.BLOCK}, multiples if aligned else {}
        )
        assert triton.compile(source, GPUTarget("cuda", architecture, 32)).asm["cubin"]
    spills = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", capfd.readouterr().out)
    assert spills == ["0"] * 3 * len(entries)


def test_a_machine_without_triton_says_so(params, here, monkeypatch) -> None:
    monkeypatch.delattr(cl.data, "_fused_jitter", raising=False)
    monkeypatch.delitem(sys.modules, "cl.data._fused_jitter", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match=r"do not run here \(import of triton.*set CL_FUSED=0"):
        ToDevice(transform(params.dataset), list(params.views.values()), replace(here, fused=True))
