"""The GPU benchmarks on a machine without a GPU: their imports resolve, and they say what they need."""

import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu import check, speed
from cl.runtime import native


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("program", [check, speed], ids=["check", "speed"])
def test_without_a_gpu_they_say_that_they_need_one(program) -> None:
    result = CliRunner().invoke(program.main)
    assert result.exit_code == 1
    expected = "Error: this needs a CUDA GPU, and PyTorch finds none; --device cpu only tries the program\n"
    assert result.output == expected


def test_the_log_partition_passes_its_check_on_a_cpu() -> None:
    result = CliRunner().invoke(check.main, ["--device", "cpu", "partition"])
    assert result.exit_code == 0, result.output
    assert result.output.count("ok ") == 4


def test_native_paths_are_not_compared_on_a_cpu() -> None:
    result = CliRunner().invoke(check.main, ["--device", "cpu", "native_paths"])
    assert result.exit_code == 0, result.output
    assert result.output.count("not compared: no GPU") == len(native.declared())
