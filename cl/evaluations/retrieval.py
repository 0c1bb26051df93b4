"""Instance retrieval: an augmented view must find its own image among all validation images."""

import csv
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import EvalSet, TrainSet
from cl.data.views import View
from cl.evaluations import Context, EvaluationConfig
from cl.evaluations._shared.shares import share
from cl.features.extraction import BATCH, extract_all
from cl.features.knn import nearest
from cl.runtime.metric_info import BACKBONE, MetricInfo

NEAREST = (1, 5)  # an image counts as found if it is among the 1, or 5, nearest


class Config(EvaluationConfig):
    """`queries`: how many images, at most, are looked up by one augmented view each."""

    needs_labels: ClassVar = False
    kind: Literal["retrieval"]
    queries: int = Field(gt=0)
    views: dict[str, View] = Field(min_length=1, max_length=1, description="the view to find the image by")

    def numbers(self) -> dict[str, MetricInfo]:
        looked_up = "images that an augmented view finds"
        return {
            f"hit{n}": MetricInfo(title, f"{looked_up} {meaning}", "higher")
            for n, title, meaning in (
                (1, "found by a view", "as its nearest"),
                (5, "among the nearest five", "among its nearest five"),
            )
        }


def evaluate(config: Config, context: Context) -> dict[str, dict[str, float]]:
    """hit1 and hit5 of the backbone's features, of each head and of each representation.

    Percent of the queries whose own image, in the evaluation's view, is among the 1 or 5 nearest by cosine.
    """
    metrics: dict[str, dict[str, float]] = {}
    for names, encoder in context.encoder.passes():
        images = EvalSet(context.val, context.transform)
        banks = extract_all(encoder, images, context.machine, count=context.progress.count)
        positions, queries = _queries(config, context, encoder)
        for name, bank, rows in zip(names, banks, queries, strict=True):
            hits = _hits(rows, bank, positions)
            found = {f"hit{n}": hits[:, :n].any(1) for n in NEAREST}
            looked_up = positions.cpu().numpy()
            metrics[name] = {key: share(hit, context.val, looked_up) for key, hit in found.items()}
            if name == BACKBONE:
                _write(hits, positions, context)
    return metrics


def _write(hits: Tensor, positions: Tensor, context: Context) -> None:
    """Write `images.csv`: each image that was looked up, and its place among the nearest, empty if beyond."""
    with (context.out / "images.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "place"])
        for position, row in zip(positions.tolist(), hits.tolist(), strict=True):
            writer.writerow([context.val.keys[position].decode(), row.index(True) + 1 if any(row) else ""])


def _plan(config: Config, val: Reader, seed: int) -> tuple[Plan, int]:
    """Batches of the images to look up, and how many of them."""
    plan = Plan(len(val), min(BATCH, config.queries, len(val)), seed, 0, 1)
    return plan, min(plan.steps_per_epoch, config.queries // plan.batch_size)


@torch.no_grad()
def _queries(config: Config, context: Context, encoder: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """Positions (Q,) of random images, and the encoder's outputs (Q, D) for a view of each.

    Each process looks up all of them, so that they are the same on any number of processes.
    """
    plan, steps = _plan(config, context.val, context.seed)
    data = TrainSet(context.val, context.transform, list(config.views.values()), plan)
    to_input = data.inputs(context.machine)
    positions: list[Tensor] = []
    outputs: list[tuple[Tensor, ...]] = []
    for host_batch in data.batches(0, steps, context.machine.workers):
        batch = to_input(host_batch)
        with context.machine.autocast():
            outputs.append(encoder(batch.views[0]))
        positions.append(batch.positions)
    return torch.cat(positions), [torch.cat(parts) for parts in zip(*outputs, strict=True)]


def _hits(queries: Tensor, bank: Tensor, positions: Tensor) -> Tensor:
    """(Q, k) bool: which of the nearest images of each query is its own."""
    k = min(max(NEAREST), len(bank))
    blocks = nearest(queries, bank, k)
    return torch.cat([found == positions[block, None] for block, _, found in blocks])
