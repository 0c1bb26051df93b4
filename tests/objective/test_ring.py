"""Negatives that stay on their ranks give what one process has with all of them."""

from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.memory import growth
from cl.objective import blocks, ring
from cl.objective.log_partition import log_partition
from cl.objective.negatives import Negatives
from cl.objective.ring import Sharded, of_all_ranks, of_all_ranks_together
from cl.runtime.distributed import gather, local_part, mean_over_ranks
from tests.support.methods import WHOLE, batch_of, build, task_of, views
from tests.support.objective import SUMS, dense, dense_sum, exclusions, l2_normalize, masked
from tests.support.processes import run_ranks
from tests.support.ranks import CELLS, ONE_OF_EACH, local, name, trajectory

RANKS, N, K = 4, 20, 28  # queries and negatives of all ranks
WAYS = ["plain", "excluded", "groups", "cold", "long", "constant queries", "constant negatives"]
CASES = list(product(["log_partition", *SUMS], WAYS, ["cpu", "gpu"]))
# Whose negatives are the keys of the step; those that select some gather them all.
IN_BATCH = {"simclr", "simo", "moco_v3", "nnclr", "invariant_spread"}
STEPS = [
    number
    for number, (case, _) in enumerate(CELLS)
    if case[0] in IN_BATCH and case[2] == WHOLE and number in ONE_OF_EACH
]
Problem = dict[str, Tensor]


def problem(way: str) -> Problem:
    """What all ranks have together; a fifth of the columns is excluded, or of the query's group."""
    torch.manual_seed(WAYS.index(way))
    queries, negatives = (3 if way == "long" else 1) * l2_normalize(N, 5), l2_normalize(K, 5)
    temperature = torch.tensor(0.01 if way == "cold" else 0.2)
    above_all = queries.norm(dim=1).max() / temperature + 0.5 + torch.rand(N).double()
    return {
        "queries": queries.requires_grad_(way != "constant queries"),
        "negatives": negatives.requires_grad_(way != "constant negatives"),
        "shift": above_all.requires_grad_(),
        "weight": torch.randn(N, dtype=torch.float64),
        "excluded": exclusions(N, K, 5),
        "query_groups": torch.randint(5, (N,)),
        "row_groups": torch.randint(5, (K,)),
        "temperature": temperature,
    }


def by_ring(reduction: str, way: str, all_ranks: Problem) -> tuple[Tensor, Problem]:
    """This rank's values, and its inputs."""
    mine = {key: x if x.ndim == 0 else local_part(x).detach() for key, x in all_ranks.items()}
    for key in ("queries", "negatives", "shift"):
        mine[key].requires_grad_(all_ranks[key].requires_grad)
    negatives = Negatives(
        Sharded(mine["negatives"]),
        excluded=mine["excluded"] if way == "excluded" else None,
        query_groups=mine["query_groups"] if way == "groups" else None,
        row_groups=all_ranks["row_groups"],
        unit=way != "long",
    )
    arguments = mine["queries"], negatives, float(mine["temperature"])
    if reduction == "log_partition":
        return log_partition(*arguments), mine
    return SUMS[reduction](*arguments, mine["shift"]), mine


def by_hand(reduction: str, way: str, inputs: Problem) -> Tensor:
    """The values of all ranks, with a matrix of all logits."""
    left_out = torch.zeros(N, K, dtype=torch.bool)
    if way == "excluded":
        left_out = masked(N, K, inputs["excluded"])
    if way == "groups":
        left_out = inputs["query_groups"][:, None] == inputs["row_groups"]
    if reduction == "log_partition":
        return dense(inputs["queries"], inputs["negatives"], left_out, float(inputs["temperature"]))
    logits = inputs["queries"] @ inputs["negatives"].T / float(inputs["temperature"])
    return dense_sum(reduction, logits, inputs["shift"], (~left_out).double())


def results(values: Tensor, inputs: Problem) -> list[Tensor]:
    """The values and their gradients, in the order of `inputs`."""
    sides = [x for x in inputs.values() if x.requires_grad]
    gradients = torch.autograd.grad((values * inputs["weight"]).sum(), sides, allow_unused=True)
    return [values.detach(), *(x for x in gradients if x is not None)]


def two_views() -> dict[str, Tensor]:
    """The loss of SimCLR with all views of the batch against each other, and its gradient."""
    task = task_of(build("simclr"))
    loss = task(local(batch_of(views(12), torch.arange(12) // 2)))
    loss.backward()
    return {
        "loss": mean_over_ranks(loss.detach()),
        **{key: mean_over_ranks(value.grad) for key, value in task.named_parameters()},
    }


def memory(limit: int) -> Tensor:
    """The largest growth of a rank, in MiB, with 32 MiB of negatives on each."""
    ring.GATHERED = limit
    queries, mine = (
        l2_normalize(16, 128, dtype=torch.float32),
        l2_normalize(2**16, 128, dtype=torch.float32).requires_grad_(),
    )
    dist.barrier()
    found = growth(lambda: log_partition(queries, Negatives(of_all_ranks(mine)), 0.1).sum().backward())
    return gather(torch.tensor([found / 2**20])).amax()


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            found[key], value, rtol=1e-10, atol=1e-12, msg=lambda m, k=key: f"{k}: {m}"
        )


def _join(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)


def measure(folder: Path, rank: int) -> None:
    """Save the memory with and without a ring."""
    _join(folder, rank)
    found = torch.stack([memory(limit) for limit in (0, 2**30)])
    if rank == 0:
        torch.save(found, folder / "memory.pt")
    dist.destroy_process_group()


def work(folder: Path, rank: int) -> None:
    """What each of the processes does."""
    _join(folder, rank)
    found = {}
    ring.GATHERED, blocks.BLOCK, blocks.AREA = 0, 4, 16
    for reduction, way, layout in CASES:
        blocks.for_gpu = lambda queries, layout=layout: layout == "gpu"
        parts = results(*by_ring(reduction, way, problem(way)))
        found[f"{reduction} {way} {layout}"] = [gather(part) for part in parts]
    found["two views"] = two_views()
    for number in STEPS:
        found[name(number)] = trajectory(number, grouped=0, steps=1)
    assert isinstance(of_all_ranks(torch.zeros(3, 2)), Sharded)
    ring.GATHERED = RANKS * 6
    assert isinstance(of_all_ranks(torch.zeros(3, 2)), Tensor)
    both = [torch.arange(6.0).view(3, 2) + 10 * rank, torch.full((3, 2), float(rank))]
    assert all(map(torch.equal, of_all_ranks_together(both), map(gather, both)))
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list[Tensor] | dict[str, Tensor]]:
    """What four processes find with a ring."""
    folder = tmp_path_factory.mktemp("ring")
    run_ranks(RANKS, work, folder)
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.mark.parametrize(("reduction", "way", "layout"), CASES)
def test_four_ranks_reduce_as_one(found, reduction, way, layout) -> None:
    """Values, and the gradients that queries, negatives and shift receive from the losses of all ranks."""
    inputs = problem(way)
    expected = results(by_hand(reduction, way, inputs), inputs)
    ours = found[f"{reduction} {way} {layout}"]
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("number", STEPS, ids=name)
def test_four_ranks_take_the_step_of_one(found, number) -> None:
    """Methods whose negatives are the keys of the step, with groups of images."""
    expected = trajectory(number, grouped=0, steps=1)
    assert_equal(found[name(number)], expected)


def test_four_ranks_contrast_two_views_as_one(found) -> None:
    assert_equal(found["two views"], two_views())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_ranks(tmp_path) -> None:
    """The rows of two ranks and their gradients (measured: 138 MiB), instead of those of all four (258)."""
    run_ranks(RANKS, measure, tmp_path)
    in_a_ring, gathered = torch.load(tmp_path / "memory.pt").tolist()
    assert in_a_ring < 0.6 * gathered


def test_one_process_gathers_nothing(monkeypatch) -> None:
    monkeypatch.setattr(ring, "GATHERED", 0)
    rows = torch.zeros(3, 2)
    assert of_all_ranks(rows) is rows
