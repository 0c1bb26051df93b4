"""plan: estimate the time and memory of pretraining."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import click
import psutil
import torch
from rich.console import Console
from rich.filesize import decimal

from cl.config import Params, rules
from cl.console.command import is_out_of_memory
from cl.console.progress import Progress
from cl.console.wording import counted
from cl.data.reader import Reader
from cl.data.ring import batches_ahead
from cl.runtime.distributed import max_over_ranks
from cl.runtime.machine import Machine
from cl.runtime.memory import available
from cl.training.loop import Data, train
from cl.training.start import Start
from pipeline.support import command, locations, pretraining, teacher

WARM_UP = 4  # steps before the measurement
LEAST, MOST, SECONDS = 5, 100, 20.0  # measured steps: as many as fit into SECONDS, from LEAST to MOST


@click.command()
@command.entry_point
@command.on_all_devices
def main() -> None:
    """Run a few pretraining steps of params.yaml, and estimate the total time and memory.

    This needs data/shards and writes nothing. It uses all visible GPUs, or CL_PROCESSES processes, as
    `pretrain` does. The report shows how long each stage took.
    """
    params = command.params()
    progress = command.progress("plan")
    params, bank, queries = locations.data(params, progress.say)
    rules.check_data(params, bank, queries)
    here = command.find_machine(params)
    params = pretraining.decide_compile(params, here, len(bank))
    pretraining.warn(params, progress)
    if arms := len(pretraining.arms(params, queries)) - 1:
        progress.say(f"the time is that of one training; this run has {arms + 1}, one for each of arms")
    free, size = _free(here.device), params.optim.batch_size
    progress.say(f"steps on {counted(size, 'images')}")
    try:
        trial = _trial(params, here, bank, queries)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(
            f"optim.batch_size={size} does not fit into the free {decimal(free)}; try half, or encode the "
            "batch in parts, such as optim.microbatches=4 with bn_group=16"
        ) from error
    if command.is_main_process():
        click.echo("\n".join(_figures(params, here, trial, free)))


class Trial:
    """Training data that measures the training loop's steps, and then ends.

    Attributes:
        peak: bytes.
        seconds, waiting: seconds per step, and those spent waiting for its data.
        monitoring: seconds of monitoring after the first epoch, and after a later one.
        encoding: seconds in which a teacher encodes all images once, before training.
    """

    def __init__(self, data: Data, here: Machine, monitor: Callable[[], float]) -> None:
        self.data, self.plan, self.inputs = data, data.plan, data.inputs
        self.here, self.monitor = here, monitor
        self.encoding = 0.0

    def batches(self, start: int, stop: int, workers: int) -> Iterator[Any]:
        """The batches of the warm-up and of the measured steps."""
        batches = self.data.batches(start, stop, workers)
        for batch in islice(batches, WARM_UP):
            since = time.monotonic()
            yield batch
        last = self._now() - since
        self.monitoring = [self.monitor() for _ in range(2)]
        for _ in islice(batches, batches_ahead(self.plan.share, workers)):
            pass  # batches that workers loaded during the monitoring would hide how slow they are
        (wanted,) = max_over_ranks(min(MOST, max(LEAST, SECONDS / last)))  # the same on all ranks
        steps = round(wanted)
        since, self.waiting = self._now(), 0.0
        for _ in range(steps):
            asked = time.monotonic()
            batch = next(batches)
            self.waiting += (time.monotonic() - asked) / steps
            yield batch
        self.seconds = (self._now() - since) / steps
        self.peak = _peak(self.here.device)

    def _now(self) -> float:
        """The time once the device has finished its queued work."""
        if self.here.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()


def _trial(params: Params, here: Machine, bank: Reader, queries: Reader) -> Trial:
    quiet = Progress("plan", Console(quiet=True))
    start = pretraining.load_start(params) if params.start_name else Start()
    keys, encoding = teacher.trial(params, here, bank, quiet)
    task, optimizer, data = pretraining.prepare(params, here, bank, start, keys)
    measure = pretraining.monitoring(params, task, data, queries)

    def monitor() -> float:
        since = time.monotonic()
        task.eval()
        measure(progress=quiet)
        task.train()
        return time.monotonic() - since

    trial = Trial(pretraining.cropped(params, data, here), here, monitor)
    epochs = max(params.optim.epochs, 2 * MOST / data.plan.steps_per_epoch)  # enough for any trial
    train(task, trial, params.optim.model_copy(update={"epochs": epochs}), optimizer, progress=quiet)
    trial.encoding = encoding * len(bank)
    return trial


def _figures(params: Params, here: Machine, trial: Trial, free: int) -> Iterator[str]:
    """A line for each figure of the whole pretraining."""
    images, per_epoch = params.optim.batch_size, trial.plan.steps_per_epoch
    steps = max(1, round(params.optim.epochs * per_epoch))
    epochs, (first, later) = math.ceil(steps / per_epoch), trial.monitoring
    hours = (steps * trial.seconds + first + (epochs - 1) * later) / 3600
    waiting, rate = trial.waiting / trial.seconds, float(f"{images / trial.seconds:.3g}")
    length = f"{counted(steps, 'steps')} in {counted(epochs, 'epochs')}"
    yield f"pretraining: {hours:.3g} hours for {length}, with kNN after each"
    yield (
        f"step: {trial.seconds:.3g} s for {images} images, {rate:g} images/s on "
        f"{trial.plan.ranks} x {here.device.type} in {here.precision}"
    )
    if trial.encoding:
        yield f"teacher: {trial.encoding / 3600:.3g} hours to encode all images, only once"
    yield f"waiting for data: {waiting:.0%} of a step" + (", which slows training" if waiting > 0.1 else "")
    yield f"kNN: {first:.3g} s after the first epoch, {later:.3g} s after each later epoch"
    verdict = "fits" if trial.peak <= free else "does not fit"
    kind = "reserved by PyTorch on a GPU" if here.device.type == "cuda" else "with data workers"
    yield f"memory: {decimal(trial.peak)} {kind}, which {verdict} into the free {decimal(free)}"


def _peak(device: torch.device) -> int:
    """Peak bytes on the GPU that uses most; on CPUs, those of this machine's processes and data workers."""
    if device.type == "cuda":
        return round(max_over_ranks(torch.cuda.max_memory_reserved())[0])
    return round(max_over_ranks(peak_of_tree(os.getpid()))[0]) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _free(device: torch.device) -> int:
    """The bytes of the same memory that this run may use."""
    return torch.cuda.mem_get_info()[0] if device.type == "cuda" else available() + _peak(device)


def peak_of_tree(pid: int) -> int:
    """Peak resident bytes of a process, plus the bytes unique to its children now; 0 if it has ended.

    Unlike the sum of proportional sizes (PSS), it does not depend on other programs with the same libraries.
    """
    total = 0
    with suppress(psutil.Error):  # the process or a child has ended
        process = psutil.Process(pid)
        total = _most_resident(process)
        for child in process.children(recursive=True):
            total += child.memory_full_info().uss
    return total


def _most_resident(process: psutil.Process) -> int:
    """Its largest resident size so far; outside of Linux, its current one."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return process.memory_info().rss


if __name__ == "__main__":
    main()
