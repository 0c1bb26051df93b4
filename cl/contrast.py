"""What a method hands to a loss, and the log-partition that every contrastive loss needs."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from cl.runtime.distributed import mean_over_ranks
from cl.runtime.machine import to_device

TILE = 1024  # side of the block of logits that exists at a time; 4 MiB in float32
GATHERED = 2**22  # numbers gathered at a time for per-query columns
SAFE_BOUND = 40.0  # logits within +-40 may be shifted by their bound: exp(-80) is no underflow in float32


@dataclass(frozen=True)
class Contrast:
    """N queries of this rank, each with P positives, against K shared negatives.

    Args:
        queries: (N, D) unit rows.
        positives: (N, P, D) unit rows; P = 1 but for JCL.
        negatives: (K, D), norm at most 1: a queue, or the keys of all ranks; None where there are none (BYOL, SimSiam).
        excluded: (N, E) int64, columns of `negatives` that do not count for a query; distinct in a row. Best on the host,
            where it is looked at: a device would have to be waited for.
        selected: (N, S) int64, the only columns that count for a query; not together with `excluded`.
        temperature: divides every similarity.
    """

    queries: Tensor
    positives: Tensor
    negatives: Tensor | None
    excluded: Tensor | None = None
    selected: Tensor | None = None
    temperature: float = 1.0

    def positive_logits(self) -> Tensor:
        """(N, P): q . p / temperature."""
        return torch.einsum("nd,npd->np", self.queries, self.positives) / self.temperature

    def negative_log_partition(self) -> Tensor:
        """(N,): log of the sum of exp(q . k / temperature) over the negatives k that count.

        Raises:
            ValueError: the method gives no negatives.
        """
        return log_partition(
            self.queries,
            self._negatives(),
            self.excluded,
            self.temperature,
            selected=self.selected,
            unit=True,
        )

    def negative_counts(self) -> Tensor:
        """(N,): how many negatives count for each query, in the queries' dtype."""
        if self.selected is not None:
            count = self.selected.shape[1]
        else:
            count = len(self._negatives()) - (0 if self.excluded is None else self.excluded.shape[1])
        return self.queries.new_full((len(self.queries),), count)

    def batch_mean(self, x: Tensor) -> Tensor:
        """(P,): mean of x (N, P) over the queries of all ranks."""
        return mean_over_ranks(x.mean(0))

    def _negatives(self) -> Tensor:
        if self.negatives is None:
            raise ValueError("this method gives no negatives, which the loss needs; choose loss=cosine")
        return self.negatives


def log_partition(
    queries: Tensor,
    negatives: Tensor,
    excluded: Tensor | None,
    temperature: float,
    *,
    selected: Tensor | None = None,
    unit: bool = False,
) -> Tensor:
    """Log-sum-exp of the logits of each query against the negatives that count, in memory linear in N and K.

    Z_i = log sum_k exp(q_i . k / temperature). The logits are computed block by block, and again in the backward pass,
    so that no (N, K) matrix ever exists; gradients to both sides are exact. Where `queries is negatives` and the
    exclusions are mutual, each block above the diagonal serves its mirror image too.

    Args:
        queries: (N, D).
        negatives: (K, D).
        excluded: (N, E) int64, distinct in a row: columns that do not count; None for none.
        selected: (N, S) int64: the only columns that count, instead of `excluded`.
        unit: no row is longer than 1, which then need not be found out.

    Returns:
        (N,) in the queries' dtype, nats.

    Raises:
        ValueError: a query has no negative that counts, or both `excluded` and `selected` are given.
    """
    if selected is not None:
        if excluded is not None:
            raise ValueError("give excluded or selected columns, not both")
        if selected.shape[1] == 0:
            raise ValueError("no negative counts: selected has no columns")
        return _selected_log_partition(queries, negatives, selected, temperature)
    left = len(negatives) - (0 if excluded is None else excluded.shape[1])
    if left < 1:
        raise ValueError(
            f"no negative counts: of {len(negatives)} negatives, {max(left, 0)} are left after exclusion"
        )
    if unit:
        bound, largest = queries.new_full((len(queries),), 1 / temperature), 1 / temperature
    else:
        bound = (
            queries.detach().norm(dim=1) * negatives.detach().norm(dim=1).max() / temperature
        )  # (N,), Cauchy-Schwarz
        largest = float(bound.max())
    if queries is negatives and largest <= SAFE_BOUND and _mutual(excluded):
        return _Symmetric.apply(queries, excluded, temperature, largest)
    return _Rectangular.apply(
        queries, negatives, excluded, temperature, bound if largest <= SAFE_BOUND else None
    )


def _selected_log_partition(
    queries: Tensor, negatives: Tensor, selected: Tensor, temperature: float
) -> Tensor:
    """Per-query columns, some rows at a time; the gathered negatives are gathered again in the backward pass."""

    def block(q: Tensor, k: Tensor, columns: Tensor) -> Tensor:
        return torch.einsum("nd,nsd->ns", q, k[columns]).div(temperature).logsumexp(1)

    rows = max(1, GATHERED // (selected.shape[1] * queries.shape[1]))
    blocks = zip(queries.split(rows), selected.split(rows), strict=True)
    return torch.cat([checkpoint(block, q, negatives, columns, use_reentrant=False) for q, columns in blocks])


class _Tile(NamedTuple):
    """One block of the matrix of logits, and the flat positions inside it that do not count."""

    rows: slice
    columns: slice
    excluded: Tensor | None


def _tiles(n: int, k: int, excluded: Tensor | None, device: torch.device) -> list[_Tile]:
    """The blocks of an (n, k) matrix, row by row."""
    starts = [(row, column) for row in range(0, n, TILE) for column in range(0, k, TILE)]
    positions = [None] * len(starts) if excluded is None else _positions(n, k, excluded, device)
    return [
        _Tile(slice(row, min(row + TILE, n)), slice(column, min(column + TILE, k)), where)
        for (row, column), where in zip(starts, positions, strict=True)
    ]


def _positions(n: int, k: int, excluded: Tensor, device: torch.device) -> list[Tensor | None]:
    """The flat positions of the excluded columns in each block: sorted by block once, so that one fill does a block."""
    across, excluded = math.ceil(k / TILE), excluded.cpu()
    rows = torch.arange(n)[:, None].expand_as(excluded).reshape(-1)
    columns = excluded.reshape(-1)
    tile, order = ((rows // TILE) * across + columns // TILE).sort()
    rows, columns = rows[order], columns[order]
    width = (k - columns // TILE * TILE).clamp(max=TILE)
    counts = torch.bincount(tile, minlength=math.ceil(n / TILE) * across).tolist()
    positions = to_device((rows % TILE) * width + columns % TILE, device)
    return [where if len(where) else None for where in positions.split(counts)]


def _mutual(excluded: Tensor | None) -> bool:
    """Whether column j is excluded for query i exactly where column i is for query j."""
    if excluded is None:
        return True
    n = len(excluded)
    rows = torch.arange(n, device=excluded.device)[:, None]
    return torch.equal(
        (rows * n + excluded).view(-1).sort().values, (excluded * n + rows).view(-1).sort().values
    )


def _exponentials(scaled: Tensor, negatives: Tensor, shift: Tensor, tile: _Tile, buffer: Tensor) -> Tensor:
    """exp(q . k / temperature - shift) of one block in `buffer`; 0 where a column does not count.

    Args:
        scaled: (N, D), queries / temperature.
        shift: (N,) or (1,).
    """
    q, k = scaled[tile.rows], negatives[tile.columns]
    shift = shift[tile.rows, None] if len(shift) > 1 else shift
    x = buffer[: len(q) * len(k)].view(len(q), len(k))
    torch.addmm(shift, q, k.T, beta=-1, out=x).exp_()
    if tile.excluded is not None:
        x.view(-1).index_fill_(0, tile.excluded, 0)
    return x


def _row_maxima(scaled: Tensor, negatives: Tensor, tiles: list[_Tile], buffer: Tensor) -> Tensor:
    """(N,): the largest logit that counts; an extra pass, for logits too large to be shifted by their bound."""
    maxima = scaled.new_full((len(scaled),), -math.inf)
    for tile in tiles:
        q, k = scaled[tile.rows], negatives[tile.columns]
        x = torch.mm(q, k.T, out=buffer[: len(q) * len(k)].view(len(q), len(k)))
        if tile.excluded is not None:
            x.view(-1).index_fill_(0, tile.excluded, -math.inf)
        maxima[tile.rows] = torch.maximum(maxima[tile.rows], x.amax(1))
    return maxima


def _buffer(queries: Tensor, negatives: Tensor) -> Tensor:
    return queries.new_empty(min(TILE, len(queries)) * min(TILE, len(negatives)))


class _Rectangular(Function):
    """Queries against other negatives."""

    @staticmethod
    def forward(ctx, queries, negatives, excluded, temperature, shift):  # type: ignore[no-untyped-def]
        tiles, buffer, scaled = (
            _tiles(len(queries), len(negatives), excluded, queries.device),
            _buffer(queries, negatives),
            queries / temperature,
        )
        if shift is None:
            shift = _row_maxima(scaled, negatives, tiles, buffer)
        total = torch.zeros_like(shift)
        for tile in tiles:
            total[tile.rows] += _exponentials(scaled, negatives, shift, tile, buffer).sum(1)
        result = shift + total.log()
        ctx.save_for_backward(queries, negatives, result)
        ctx.tiles, ctx.temperature = tiles, temperature
        return result

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, negatives, result = ctx.saved_tensors
        buffer, scaled = _buffer(queries, negatives), queries / ctx.temperature
        weight = (gradient / ctx.temperature)[:, None]
        weighted = queries * weight
        to_queries = torch.zeros_like(queries) if ctx.needs_input_grad[0] else None
        to_negatives = torch.zeros_like(negatives) if ctx.needs_input_grad[1] else None
        for tile in ctx.tiles:
            softmax = _exponentials(scaled, negatives, result, tile, buffer)
            if to_queries is not None:
                to_queries[tile.rows].addmm_(softmax, negatives[tile.columns])
            if to_negatives is not None:
                to_negatives[tile.columns].addmm_(softmax.T, weighted[tile.rows])
        return None if to_queries is None else to_queries.mul_(weight), to_negatives, None, None, None


class _Symmetric(Function):
    """Embeddings against themselves: the blocks above the diagonal, each used for its mirror image too."""

    @staticmethod
    def forward(ctx, embeddings, excluded, temperature, bound):  # type: ignore[no-untyped-def]
        n = len(embeddings)
        tiles = [t for t in _tiles(n, n, excluded, embeddings.device) if t.columns.start >= t.rows.start]
        buffer, scaled, shift = (
            _buffer(embeddings, embeddings),
            embeddings / temperature,
            embeddings.new_tensor([bound]),
        )
        total = embeddings.new_zeros(n)
        for tile in tiles:
            x = _exponentials(scaled, embeddings, shift, tile, buffer)
            total[tile.rows] += x.sum(1)
            if tile.columns != tile.rows:
                total[tile.columns] += x.sum(0)
        ctx.save_for_backward(embeddings, shift, total)
        ctx.tiles, ctx.temperature = tiles, temperature
        return shift + total.log()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        embeddings, shift, total = ctx.saved_tensors
        buffer, scaled = _buffer(embeddings, embeddings), embeddings / ctx.temperature
        weight = gradient / ctx.temperature / total
        result = torch.zeros_like(embeddings)
        for tile in ctx.tiles:
            x = _exponentials(scaled, embeddings, shift, tile, buffer)
            x *= weight[tile.rows, None] + weight[tile.columns]
            result[tile.rows].addmm_(x, embeddings[tile.columns])
            if tile.columns != tile.rows:
                result[tile.columns].addmm_(x.T, embeddings[tile.rows])
        return result, None, None, None
