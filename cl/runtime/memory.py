"""How much memory something takes."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable

import psutil
import torch


def growth(function: Callable[[], object], device: torch.device | None = None) -> int:
    """By how many bytes this process (on a GPU, what PyTorch holds there) grows at the most while `function` runs."""
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # or what was freed and kept hides what is taken
    process = psutil.Process()
    before = largest = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.is_set():
            largest = max(largest, process.memory_info().rss)
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        done.set()
        watcher.join()
    return largest - before
