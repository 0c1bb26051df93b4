"""What a process sets up on its machine."""

from collections.abc import Iterator

import pytest
import torch

from cl.runtime import machine


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """The settings of this process as they were."""
    threads, fill = torch.get_num_threads(), torch.utils.deterministic.fill_uninitialized_memory
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("deterministic", "fixed_shapes", "tried"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_cudnn_tries_its_algorithms_where_shapes_repeat(deterministic, fixed_shapes, tried) -> None:
    machine.find("fp32", deterministic=deterministic, fixed_shapes=fixed_shapes)
    assert torch.backends.cudnn.benchmark is tried
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_fused_kernels_are_for_gpus_and_off_by_default() -> None:
    assert not machine.find("fp32", deterministic=False).fused
    assert machine.find("fp32", deterministic=False, fused=True).fused == torch.cuda.is_available()


@pytest.mark.parametrize(
    ("precision", "products", "convolutions"),
    [("fp32", False, False), ("tf32", True, True), ("bf16", True, False)],
)
def test_beside_an_encoder_in_bfloat16_logits_may_use_tf32(precision, products, convolutions) -> None:
    machine._configure_backends(precision, deterministic=False, fixed_shapes=True)
    assert torch.backends.cuda.matmul.allow_tf32 == products
    assert torch.backends.cudnn.allow_tf32 == convolutions


@pytest.mark.parametrize(
    ("cores", "processes", "threads", "workers"),
    [(1, 1, 1, 1), (4, 1, 4, 3), (4, 2, 2, 1), (192, 8, 24, 16), (192, 1, 192, 16)],
)
def test_processes_share_the_cores(monkeypatch, cores, processes, threads, workers) -> None:
    """Every process has a data worker, and at most sixteen."""
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    here = machine.find("fp32", deterministic=False)
    assert (torch.get_num_threads(), here.workers) == (threads, workers)
