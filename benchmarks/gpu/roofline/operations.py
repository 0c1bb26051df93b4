"""Operations on a GPU, the bytes and the arithmetic of each, and the rates of cards."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from cl.runtime.machine import Precision

# These do not read their first argument.
UNREAD = {"copy_", "fill_", "zero_", "batch_norm_gather_stats_with_counts"}
SOME_ROWS = {"embedding", "gather", "index", "index_put_", "index_select", "scatter"}  # of a large table


class Gpu(NamedTuple):
    """Rates that a card reaches at best.

    flops: per second, of dense convolutions and matrix products.
    bandwidth: bytes per second of its memory.
    """

    flops: dict[Precision, float]
    bandwidth: float


GPUS = {
    "a100": Gpu({"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12}, 1.9e12),
    "h100": Gpu({"bf16": 798e12, "tf32": 400e12, "fp32": 67e12}, 3.0e12),
    "h200": Gpu({"bf16": 798e12, "tf32": 400e12, "fp32": 67e12}, 4.3e12),
}


class Operation(NamedTuple):
    """A call that starts at least one kernel."""

    name: str
    flops: int
    bytes: int
    precision: Precision

    def seconds(self, gpu: Gpu) -> float:
        """The time of its arithmetic or of its memory accesses, whichever is longer."""
        return max(self.flops / gpu.flops[self.precision], self.bytes / gpu.bandwidth)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors in nested arguments or results of one of PyTorch's functions."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)


def operation(
    name: str, function: Any, args: Any, kwargs: dict[str, Any], result: Any, float32: Precision
) -> Operation:
    """The operation that a call of one of PyTorch's functions is; `float32`: how float32 is multiplied."""
    count = flop_registry.get(function._overloadpacket)
    flops = count(*args, **kwargs, out_val=result) if count else 0
    results = _tensors(result)
    precision = "bf16" if any(x.dtype == torch.bfloat16 for x in results.values()) else float32
    return Operation(name, flops, _bytes(name, function, args, kwargs, results), precision)


def _bytes(name: str, function: Any, args: Any, kwargs: dict[str, Any], results: dict[int, Tensor]) -> int:
    """What it reads and writes: each tensor once, and the rows of batch norm twice, first for statistics."""
    arguments = function._schema.arguments
    given = {**dict(zip((each.name for each in arguments), args, strict=False)), **kwargs}
    read, written = _tensors([*given.values()]), dict(results)
    for each in arguments:
        if each.alias_info and each.alias_info.is_write:
            written |= _tensors(given.get(each.name))
    if name in SOME_ROWS:
        rows = given["values"] if name == "index_put_" else next(iter(results.values()))
        return 2 * _size(rows) + sum(_size(x) for x in read.values() if x.dtype == torch.int64)
    if name in UNREAD:
        del read[id(args[0])]
    if name.startswith("new_") or name.endswith("_like"):
        read.clear()
    times = 2 if name.removesuffix("_backward").endswith("batch_norm") else 1
    return times * sum(map(_size, read.values())) + sum(map(_size, written.values()))


def _tensors(values: Any) -> dict[int, Tensor]:
    """Those in nested containers, each once."""
    return {id(x): x for x in tensors_in(values)}


def _size(x: Tensor) -> int:
    """The bytes of different elements; expanded ones share memory."""
    elements = 1
    for length, stride in zip(x.shape, x.stride(), strict=True):
        elements *= length if stride else min(length, 1)
    return elements * x.element_size()
