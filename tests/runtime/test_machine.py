"""What a process sets up on its machine."""

import os
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from cl.console import launch
from cl.runtime import machine


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The settings of this process as they were."""
    with machine.settings_restored():
        yield


TOO_OLD = "The NVIDIA driver on your system is too old (found version 12040). Please update your driver."
MISMATCH = "Unexpected error from cudaGetDeviceCount(). Error 803: unsupported driver combination"
NO_DEVICE = "No CUDA GPUs are available"


@pytest.fixture
def machine_with(monkeypatch, tmp_path):
    """Makes PyTorch answer as on a machine with GPUs that CUDA cannot start."""

    def pretend(reason: str, by_driver: int, device_files: int = 8, chosen: str | None = None) -> None:
        def init() -> None:
            raise RuntimeError(reason)

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: by_driver)
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(machine, "DRIVER", tmp_path / "version")
        machine.DRIVER.write_text("550.54.15\n")
        monkeypatch.setattr(machine, "DEVICE_FILES", tmp_path)
        for number in range(device_files):
            (tmp_path / f"nvidia{number}").touch()
        (tmp_path / "nvidiactl").touch()
        monkeypatch.delenv("CL_PROCESSES", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if chosen is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)

    return pretend


@pytest.mark.parametrize(
    ("reason", "by_driver", "chosen", "told"),
    [
        (TOO_OLD, 8, None, r"\(NVIDIA driver 550.54.15\): The NVIDIA driver on your system is too old"),
        (MISMATCH, 0, None, r"\(NVIDIA driver 550.54.15\): Unexpected error .* `nvidia-smi`"),
        (NO_DEVICE, 0, "9", "the GPUs that CUDA_VISIBLE_DEVICES=9 names .*: No CUDA GPUs are available;"),
    ],
    ids=["old driver", "broken driver", "no such GPU"],
)
def test_gpus_that_cuda_cannot_start_are_refused_and_the_driver_is_named(
    reason, by_driver, chosen, told, machine_with
) -> None:
    """Otherwise, eight processes would train on the CPU."""
    machine_with(reason, by_driver, chosen=chosen)
    for ask in (launch.processes, machine.default_device, lambda: machine.find("fp32", deterministic=False)):
        with pytest.raises(ValueError, match=f"{told}.* CUDA_VISIBLE_DEVICES= before the command"):
            ask()


@pytest.mark.parametrize(
    ("reason", "by_driver", "device_files", "chosen"),
    [
        (TOO_OLD, 0, 8, ""),
        (TOO_OLD, 0, 8, "-1"),
        (TOO_OLD, 0, 8, "NoDevFiles"),
        (NO_DEVICE, 0, 8, None),
        (NO_DEVICE, 0, 0, None),
        (NO_DEVICE, 0, 0, "0"),
    ],
    ids=["hidden", "hidden by -1", "hidden by Slurm", "not lent", "no GPU", "no GPU, one chosen"],
)
def test_without_gpus_or_with_hidden_ones_the_cpu_is_used(
    reason, by_driver, device_files, chosen, machine_with
) -> None:
    machine_with(reason, by_driver, device_files, chosen)
    assert (launch.processes(), machine.default_device().type) == (1, "cpu")


def test_gpus_are_counted_as_cuda_counts_them(monkeypatch) -> None:
    """The driver counts eight cards, whose MIG instances CUDA offers one at a time."""
    monkeypatch.delenv("CL_PROCESSES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1, raising=False)
    assert launch.processes() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes need as many GPUs, found 1"):
        machine.find("fp32", deterministic=False)


@pytest.mark.parametrize(
    ("deterministic", "fixed_shapes", "tried"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_cudnn_tries_its_algorithms_where_shapes_repeat(deterministic, fixed_shapes, tried) -> None:
    machine.find("fp32", deterministic=deterministic, fixed_shapes=fixed_shapes)
    assert torch.backends.cudnn.benchmark is tried
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize(
    ("cards", "emulated", "chosen"), [(1, False, "bf16"), (1, True, "fp32"), (0, False, "fp32")]
)
def test_the_precision_is_bf16_on_gpus_that_compute_in_it(cards, emulated, chosen, monkeypatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: cards)
    monkeypatch.setattr(machine, "slow_bf16", lambda: emulated)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert machine.find("auto", deterministic=False).precision == chosen


def test_fused_kernels_are_for_gpus_that_can_compile_them(monkeypatch) -> None:
    monkeypatch.setenv("CL_FUSED", "1")
    assert machine.fused_kernels()
    assert machine.find("fp32", deterministic=False).fused == (machine.gpus() > 0)
    monkeypatch.setenv("CL_FUSED", "0")
    assert not machine.fused_kernels()
    monkeypatch.setenv("CL_FUSED", "")
    monkeypatch.setenv("CC", "true")  # any program
    assert machine.fused_kernels() == Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not machine.fused_kernels()
    monkeypatch.setenv("CL_FUSED", "yes")
    with pytest.raises(ValueError, match="CL_FUSED=yes: choose 1"):
        machine.fused_kernels()


def _global_precision() -> None:
    torch.backends.fp32_precision = "tf32"


def _precision_of_products() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def _workspace_of_products() -> None:
    os.environ[machine.WORKSPACE] = ":16:8"


def _settings(choose: Callable[[], None]) -> list[dict[str, Any]]:
    """What a caller who has chosen settings reads before, within and after a use of the machine."""

    def read() -> dict[str, Any]:
        try:
            products = torch.get_float32_matmul_precision()
        except RuntimeError:
            products = "set by the newer interface"
        return {
            "products": torch.backends.cuda.matmul.fp32_precision,
            "convolutions": torch.backends.cudnn.conv.fp32_precision,
            "by name": products,
            "deterministic": torch.get_deterministic_debug_mode(),
            "filled": torch.utils.deterministic.fill_uninitialized_memory,
            "workspace": os.environ.get(machine.WORKSPACE),
        }

    os.environ.pop(machine.WORKSPACE, None)  # of an earlier test
    choose()
    before = read()
    with machine.settings_restored():
        machine.find("fp32", deterministic=True)
        within = read()
    return [before, within, read()]


@pytest.mark.parametrize(
    "choose",
    [
        _global_precision,
        _precision_of_products,
        _workspace_of_products,
        partial(torch.set_float32_matmul_precision, "medium"),
        partial(torch.use_deterministic_algorithms, True, warn_only=True),
    ],
)
def test_a_caller_gets_its_own_settings_back(choose) -> None:
    with get_context("fork").Pool(1) as pool:  # some choices cannot be undone
        before, within, after = pool.apply(_settings, (choose,))
    assert before == after
    assert (within["products"], within["convolutions"]) == ("ieee", "ieee")
    assert within["workspace"]


@pytest.mark.parametrize(
    ("precision", "products", "convolutions"),
    [("fp32", False, False), ("tf32", True, True), ("bf16", True, False)],
)
def test_beside_an_encoder_in_bfloat16_logits_may_use_tf32(precision, products, convolutions) -> None:
    machine._configure_backends(precision, deterministic=False, fixed_shapes=True)
    assert torch.backends.cuda.matmul.allow_tf32 == products
    assert torch.backends.cudnn.allow_tf32 == convolutions


@pytest.mark.parametrize(
    ("cores", "gpus", "processes", "threads", "workers"),
    [
        (1, 0, 1, 1, 1),
        (4, 0, 1, 4, 3),
        (4, 0, 2, 2, 1),
        (192, 0, 8, 24, 16),
        (192, 0, 1, 192, 16),
        (16, 1, 1, 1, 15),
    ],
)
def test_processes_share_the_cores(monkeypatch, cores, gpus, processes, threads, workers) -> None:
    """Every process has a data worker, and at most sixteen; beside a GPU, all cores but one are for them."""
    monkeypatch.setattr("cl.runtime.cores.cores", lambda: cores)
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    here = machine.find("fp32", deterministic=False)
    assert (torch.get_num_threads(), here.workers) == (threads, workers)
    monkeypatch.setenv("CL_WORKERS", "1")
    assert machine.find("fp32", deterministic=False).workers == 1


def test_a_gpu_of_another_maker_is_said_to_be_untested(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(machine, "AMD_DRIVER", tmp_path / "kfd")
    assert machine.untested_gpu() is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert "not used" in machine.untested_gpu()
    machine.AMD_DRIVER.touch()
    assert "not used" in machine.untested_gpu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "gpus", lambda: 1)
        assert machine.untested_gpu() is None, "beside one that is used"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert "compare" in machine.untested_gpu()
