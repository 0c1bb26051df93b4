"""Blocks of the matrix of logits, which never exists as a whole."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cl.objective.negatives import Mask, Negatives
from cl.runtime.machine import to_device

BLOCK = 1024  # side of a block of logits on a CPU, where one exists at a time; 4 MiB in float32
AREA = 2**26  # numbers in a block on a GPU, where small blocks cost more to launch than to compute
GATHERED = 2**22  # numbers gathered at a time on a CPU; on a GPU, AREA


class Block(NamedTuple):
    """A block of logits, in memory that the next block overwrites.

    rows, columns: its queries and its negatives.
    logits: (n, k).
    flat: (n k + 1,), the memory of `logits`, and a spare element at the end.
    masked: positions in `flat` to mask; columns outside this block map to the spare element.
    masks: what else to mask, by the images of all queries and of all negatives.
    """

    rows: slice
    columns: slice
    logits: Tensor
    flat: Tensor
    masked: Tensor | None
    masks: tuple[Mask, ...]

    def fill(self, value: float) -> Tensor:
        """Overwrite logits that do not count, in place; returns the block (n, k)."""
        if self.masked is not None:
            self.flat.index_fill_(0, self.masked, value)
        for mask in self.masks:
            left_out = torch.empty_like(self.logits, dtype=torch.bool)  # in the memory order of the block
            mask.left_out(mask.queries[self.rows, None], mask.rows[self.columns], out=left_out)
            self.logits.masked_fill_(left_out, value)
        return self.logits


def for_gpu(queries: Tensor) -> bool:
    """Whether blocks have the size and the layout for a GPU."""
    return queries.device.type != "cpu"


@dataclass(frozen=True)
class BlockwiseLogits:
    """The matrix of q . k / temperature - shift, of which one block exists at a time.

    queries: (N, D).
    negatives: (K, D).
    excluded: (N, E) int64 on the device of `queries`, or None.
    masks: which negatives do not count because of their images.
    """

    queries: Tensor
    negatives: Tensor
    excluded: Tensor | None
    temperature: float
    masks: tuple[Mask, ...]

    def blocks(self, shift: Tensor | None, *, upper: bool = False) -> Iterator[Block]:
        """The blocks, row by row; if `upper`, only those on and above the diagonal. `shift`: (N,) or None."""
        n, k = len(self.queries), len(self.negatives)
        height, width = self._sides
        for row in range(0, n, height):
            rows = slice(row, min(row + height, n))
            for column in range(row if upper else 0, k, width):
                yield self._block(shift, rows, slice(column, min(column + width, k)))

    def gradients(
        self, weight: Tensor, shift: Tensor, derivative: Callable[[Block], Tensor], needed: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients to the queries (N, D) and to the negatives (K, D), where `needed`.

        This is the backward pass of the log-partition and of the sums. With x_ik the derivative, query i
        receives weight_i sum_k x_ik k, and negative k receives sum_i weight_i x_ik q_i.

        Args:
            weight: (N,), the gradient of each query's result, divided by the temperature.
            derivative: turns a block of logits into the derivatives by each logit, in place.
        """
        to_queries = torch.zeros_like(self.queries) if needed[0] else None
        to_negatives = torch.zeros_like(self.negatives) if needed[1] else None
        weighted = self.queries * weight[:, None]
        for block in self.blocks(shift):
            x = derivative(block)
            if to_queries is not None:
                to_queries[block.rows].addmm_(x, self.negatives[block.columns])
            if to_negatives is not None:
                to_negatives[block.columns].addmm_(x.T, weighted[block.rows])
        return None if to_queries is None else to_queries.mul_(weight[:, None]), to_negatives

    def _block(self, shift: Tensor | None, rows: slice, columns: slice) -> Block:
        q, k = self._scaled[rows], self.negatives[columns]
        memory = self._memory[: len(q) * len(k) + 1]
        logits = self._product(q, k, None if shift is None else shift[rows], memory[:-1])
        return Block(rows, columns, logits, memory, self._masked(rows, columns.start, logits), self.masks)

    def _masked(self, rows: slice, start: int, logits: Tensor) -> Tensor | None:
        """The flat positions of the excluded columns in the block that begins at column `start`, if any."""
        if self.excluded is None:
            return None
        (n, k), (down, right) = logits.shape, logits.stride()
        smallest, largest = self._excluded_range[rows.start // self._sides[0]]
        if largest < start or smallest >= start + k:
            return None
        columns = self.excluded[rows]
        first = -start * right  # the position of column 0, which may be before this block
        positions = torch.arange(first, first + n * down, down, device=columns.device)[:, None]
        positions = positions.add(columns, alpha=right)
        if smallest < start or largest >= start + k:
            positions = positions.where((columns >= start) & (columns < start + k), n * k)
        return positions.view(-1)

    @cached_property
    def _excluded_range(self) -> list[list[int]]:
        """The smallest and largest excluded column of each row of blocks; of all columns on a GPU."""
        assert self.excluded is not None
        parts = self.excluded.split(self._sides[0])
        if for_gpu(self.queries):
            return [[0, len(self.negatives) - 1]] * len(parts)
        return [[int(bound) for bound in part.aminmax()] for part in parts]

    def _product(self, q: Tensor, k: Tensor, shift: Tensor | None, memory: Tensor) -> Tensor:
        """The block q . k - shift, (n, k), in `memory`.

        On a GPU, it is stored transposed: cuBLAS can add one vector to every row as it writes, but a vector
        along the columns would have to be expanded to the whole block first.
        """
        if for_gpu(self.queries):
            x = memory.view(len(k), len(q))
            return (torch.mm(k, q.T, out=x) if shift is None else torch.addmm(-shift, k, q.T, out=x)).T
        x = memory.view(len(q), len(k))
        if shift is None:
            return torch.mm(q, k.T, out=x)
        return torch.addmm(shift[:, None], q, k.T, beta=-1, out=x)

    @cached_property
    def _sides(self) -> tuple[int, int]:
        """The largest height and width of a block; equal if there are as many queries as negatives."""
        if not for_gpu(self.queries):
            return BLOCK, BLOCK
        side = math.isqrt(AREA)
        return max(side, AREA // len(self.negatives)), max(side, AREA // len(self.queries))

    @cached_property
    def _scaled(self) -> Tensor:
        return self.queries / self.temperature

    @cached_property
    def _memory(self) -> Tensor:
        height, width = self._sides
        n, k = min(height, len(self.queries)), min(width, len(self.negatives))
        return self.queries.new_empty(n * k + 1)


def blockwise(
    negatives: Negatives, temperature: float, device: torch.device
) -> Callable[[Tensor, Tensor], BlockwiseLogits]:
    """The function from queries on this device and negatives, which autograd saves, to their logits."""
    excluded = None if negatives.excluded is None else to_device(negatives.excluded, device)
    return partial(BlockwiseLogits, excluded=excluded, temperature=temperature, masks=negatives.masks)


def exponentials(block: Block) -> Tensor:
    """exp(logit) of one block, in place; 0 where a column does not count."""
    block.logits.exp_()
    return block.fill(0)


def over_selected(
    reduce: Callable[[Tensor, Tensor, Tensor], Tensor],
    queries: Tensor,
    negatives: Negatives,
    temperature: float,
) -> Tensor:
    """(N,): `reduce` of each query's selected logits, a few queries at a time.

    The selected rows are gathered again in the backward pass. `reduce` takes the logits (n, S), the mask of
    those that do not count (n, S) and the numbers of the queries (n,).
    """
    selected, masks = negatives.selected, negatives.masks
    assert selected is not None

    def block(q: Tensor, rows: Tensor, columns: Tensor, numbers: Tensor) -> Tensor:
        logits = torch.einsum("nd,nsd->ns", q, rows[columns]).div(temperature)
        absent = columns < 0  # (n, S)
        for mask in masks:
            absent = absent | mask.of_columns(columns, numbers)
        return reduce(logits, absent, numbers)

    area = GATHERED if queries.device.type == "cpu" else AREA
    size = max(1, area // (selected.shape[1] * queries.shape[1]))
    numbers = torch.arange(len(queries), device=queries.device).split(size)
    parts = zip(queries.split(size), selected.split(size), numbers, strict=True)
    return torch.cat(
        [checkpoint(block, q, negatives.rows, columns, n, use_reentrant=False) for q, columns, n in parts]
    )
