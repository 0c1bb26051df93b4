"""Blocks on a GPU: how many there are, and that nothing waits for them."""

import pytest
import torch

from benchmarks.gpu.roofline.backward import backward
from benchmarks.gpu.roofline.fake_gpu import GPU, FakeGpu
from cl.objective import log_partition as module
from cl.objective.blocks import AREA, Block, BlockwiseLogits
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives
from cl.objective.sums import softplus_sum
from tests.support.objective import exclusions, masked


def blocks_of(n: int, k: int, *, upper: bool = False) -> list[Block]:
    """The blocks of queries and negatives on a GPU."""
    queries, negatives = (torch.empty(rows, 128, device="meta") for rows in (n, k))
    return list(BlockwiseLogits(queries, negatives, None, 0.1, ()).blocks(None, upper=upper))


@pytest.mark.parametrize(
    ("n", "k", "count"), [(256, 65536, 1), (65536, 256, 1), (256, 1281167, 5), (8193, 8193, 4), (1, 1, 1)]
)
def test_blocks_are_sized_by_area(n, k, count) -> None:
    """A batch against MoCo's queue is one block; a class for each image of ImageNet, five."""
    found = blocks_of(n, k)
    assert len(found) == count
    assert max(block.logits.numel() for block in found) <= AREA
    assert sum(block.logits.numel() for block in found) == n * k


def test_blocks_below_the_diagonal_are_not_built() -> None:
    """Of 16 x 16 blocks of SimCLR with 65,536 images, those on the diagonal and those above."""
    found = blocks_of(131072, 131072, upper=True)
    assert len(found) == 16 * 17 // 2
    assert all(block.columns.start >= block.rows.start for block in found)


def test_a_step_of_moco_writes_each_logit_twice() -> None:
    """Forward a product that adds the shift, backward the same and the product with the queue."""
    with FakeGpu() as gpu:
        queries = torch.empty(256, 128, device=GPU, requires_grad=True)
        queue = torch.empty(65536, 128, device=GPU)
        backward(log_partition(queries, Negatives(queue), 0.2).sum())
    expected = {"addmm": 2, "exp_": 2, "addmm_": 1, "mm": 0, "copy_": 0}
    assert {name: gpu.counts()[name] for name in expected} == expected


@pytest.mark.parametrize("way", ["plain", "excluded", "excluded on the GPU", "groups", "selected"])
@pytest.mark.parametrize(
    ("same", "rows", "temperature"),
    [(True, "unit", 0.1), (False, "unit", 0.1), (False, "unit", 0.01), (False, "of any length", 0.1)],
)
def test_nothing_waits_for_the_gpu(temperature, same, way, rows) -> None:
    with FakeGpu() as gpu:
        queries = torch.empty(6, 4, device=GPU, requires_grad=True)
        negatives = queries if same else torch.empty(6, 4, device=GPU, requires_grad=True)
        itself = torch.arange(6)
        excluded = torch.stack([itself, itself ^ 1], 1) if "excluded" in way else None
        if way == "excluded on the GPU":
            excluded = itself.to(GPU)[:, None]
        groups = torch.empty(6, dtype=torch.int64, device=GPU)
        selected = torch.empty(6, 2, dtype=torch.int64, device=GPU) if way == "selected" else None
        pair = (groups, groups) if way == "groups" else None
        gpu.may_wait = False
        chosen = Negatives(negatives, excluded, selected, pair, unit=rows == "unit")
        z = log_partition(queries, chosen, temperature)
        backward((z + softplus_sum(queries, chosen, temperature, z)).sum())


@pytest.mark.parametrize("e", [1, 2, 3])
def test_exclusions_are_mutual_where_their_matrix_is_symmetric(e) -> None:
    found = []
    for _ in range(500):
        excluded = exclusions(4, 4, e)
        matrix = masked(4, 4, excluded)
        found.append(module._mutual(excluded))
        assert found[-1] == torch.equal(matrix, matrix.T)
    assert {True, False} == set(found)
