"""What a plan says about pretraining: what limits its speed, the largest batch, and its time elsewhere."""

import math
from typing import TYPE_CHECKING

from cl.console.wording import memory
from pipeline.support import launch, locations
from pipeline.support.workplace import Ran, Workplace

if TYPE_CHECKING:
    from cl.config import Params

FILL = 0.9  # of the memory, by the largest batch
LOWER = (1.0, 0.9, 0.8)  # of that batch, tried on a GPU until one fits
UTILISATION = 0.3  # of a GPU's peak, on another machine


def images_per_second(params: "Params", ran: Ran) -> float:
    """The rate of the rehearsal's first loop, over all processes."""
    return params.optim.batch_size / ran.loop["seconds"]


def waiting(params: "Params", ran: Ran, delivered: float) -> float:
    """Seconds to add to pretraining if its first steps used data that was drawn while it started."""
    per_step = params.optim.batch_size / delivered - ran.loop["seconds"]
    return max(0.0, per_step) * ran.loop["rounds"]


def bottleneck(params: "Params", ran: Ran, delivered: float, *, workers: bool) -> str:
    """What the training step consumes beside what its data alone would allow, in images/s.

    Args:
        workers: whether data workers deliver it; otherwise, the process that trains does so by itself.
    """
    consumed = images_per_second(params, ran)
    data = "the data workers limit" if workers else "that limits"
    slower = "the training step limits" if delivered > 1.1 * consumed else data
    alone = (
        f"The data workers alone deliver {number(delivered)} images/s"
        if workers
        else "There are no data workers: the process that trains draws boxes and colours, and reads images "
        f"that are not on the device; this alone would allow {number(delivered)} images/s"
    )
    return (
        f"A step on {params.optim.batch_size} images takes {ran.loop['seconds']:.3g} s, so pretraining "
        f"consumes up to {number(consumed)} images/s. {alone}: {slower} the speed."
    )


def checkpoints(place: Workplace) -> str:
    """The disk that pretraining uses while it runs."""
    from cl.training.checkpoints import KEEP

    sizes = [(place.folder / path).stat().st_size for path in (locations.METHOD, locations.OPTIMIZER)]
    return (
        f"While it runs, {KEEP} checkpoints in CL_SCRATCH take {memory(KEEP * sum(sizes))}, "
        "which are freed at the end."
    )


def largest_batch(params: "Params", place: Workplace, ran: Ran) -> str:
    """The largest batch that fits into memory, from the memory at two sizes; a GPU tries it."""
    import torch

    from cl.runtime.memory import available

    gpu, batch = torch.cuda.is_available(), params.optim.batch_size
    multiple = granularity(params, launch.processes())
    images = len(locations.reader("train", params.dataset))
    capacity = torch.cuda.get_device_properties(0).total_memory if gpu else available()
    other = batch // 2 // multiple * multiple or 2 * batch
    try:
        points = {batch: ran, other: place.with_optim(batch_size=other).rehearse("pretrain")}
    except ValueError as error:
        return f"The largest batch was not measured: at {other} images, {error}"
    sizes = {size: (point.gpu_bytes if gpu else point.host_bytes) or 0 for size, point in points.items()}
    largest = fit(sizes, FILL * capacity, multiple, images)
    kind = "an estimate"
    if gpu:
        tried = _first_that_fits(place, largest, multiple)
        kind = "tried out" if tried else f"but neither that nor {LOWER[-1]:.0%} of it ran; an estimate"
        largest = tried or largest
    found = f"{largest} of the {images} images" if largest + multiple > images else f"{largest} images"
    by = " and ".join(f"{memory(size)} at {batch}" for batch, size in sorted(sizes.items()))
    return (
        f"The largest batch that fits into {FILL:.0%} of the {memory(capacity)} of "
        f"{'the GPU' if gpu else 'memory that are free now'}: {found} ({kind}, from {by})."
    )


def granularity(params: "Params", processes: int) -> int:
    """A batch is a multiple of it: processes, microbatches and groups of batch norm get equal parts."""
    group = 1 if params.bn_group == "global" else params.bn_group
    if params.optim.microbatches > 1:
        return group * params.optim.microbatches * processes
    return math.lcm(group, processes)


def fit(sizes: dict[int, int], capacity: float, multiple: int, images: int) -> int:
    """The largest multiple whose memory, on the line through two points, is within the capacity.

    Args:
        sizes: bytes at two batch sizes.
        images: the upper bound of a batch.
    """
    (small, low), (large, high) = sorted(sizes.items())
    slope = (high - low) / (large - small)
    fitting = min(images, (capacity - low) / slope + small) if slope > 0 else images
    return max(0, int(fitting) // multiple * multiple)


def _first_that_fits(place: Workplace, batch: int, multiple: int) -> int | None:
    for part in LOWER:
        size = int(part * batch) // multiple * multiple
        try:
            place.with_optim(batch_size=size).rehearse("pretrain")
        except ValueError:
            continue
        return size
    return None


def elsewhere(params: "Params", place: Workplace, ran: Ran, gpu_tflops: float, rate: float) -> str:
    """The time of pretraining at another peak and another rate of data."""
    flops = place.with_optim(compile=False).rehearse("flops").report["flops"]
    hours, limit = hours_elsewhere(
        ran.loop["rounds"], params.optim.batch_size, flops, tflops=gpu_tflops, rate=rate
    )
    return (
        f"With {gpu_tflops:g} TFLOP/s and data at {number(rate)} images/s, pretraining takes {hours:.3g} "
        f"hours, limited by {limit}. This assumes that a step, {flops / 1e12:.3g} TFLOP as counted here, "
        f"reaches {UTILISATION:.0%} of that peak, and that the slower of computing and reading decides."
    )


def hours_elsewhere(
    steps: float, batch_size: int, flops: float, *, tflops: float, rate: float
) -> tuple[float, str]:
    """Hours of `steps` steps of so many FLOPs, and what limits them; `rate` in images/s."""
    computing, reading = flops / (UTILISATION * tflops * 1e12), batch_size / rate
    return steps * max(computing, reading) / 3600, "data" if reading > computing else "the GPU"


def number(value: float) -> str:
    """A number to three digits, or whole."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
