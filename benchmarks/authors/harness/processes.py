"""A comparison in processes of its own, since stand-ins change PyTorch for the whole process."""

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.authors.harness.comparison import Agreement, Numbers

PATIENCE = timedelta(minutes=5)  # with another process that has failed


def compare(comparison: Any, folder: Path) -> tuple[Agreement, Numbers]:
    """What `comparison.compare(folder)` returns in the first of its processes."""
    count = comparison.processes
    with tempfile.TemporaryDirectory() as scratch:
        work = partial(_work, comparison, folder, Path(scratch) / "store")
        context = multiprocessing.get_context("fork")  # what is imported here serves all
        with ProcessPoolExecutor(count, mp_context=context) as pool:
            return next(iter(pool.map(work, range(count))))


def _work(comparison: Any, folder: Path, store: Path, rank: int) -> tuple[Agreement, Numbers]:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=comparison.processes,
        timeout=PATIENCE,
    )
    found = comparison.compare(folder)
    dist.barrier()
    dist.destroy_process_group()
    return found
