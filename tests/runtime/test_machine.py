"""What a process sets up on its machine."""

import pytest
import torch

from cl.runtime import machine


@pytest.fixture(autouse=True)
def _restored():
    """The settings of this process as they were."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    fill = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark
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
