"""Batches for training and evaluation: the same for every number of ranks and workers, and after a resume."""

import numpy as np
import pytest
import torch

from cl.data.order import Plan
from cl.data.reader import Reader
from cl.data.sets import EvalSet, TrainSet
from cl.data.transform import Transform
from cl.data.views import RandomNumbers, View, centre, cut_patches, draw_colour_params
from pipeline.support.locations import transform
from tests.support.bands import CHANGES


@pytest.fixture(params=["RGB", "bands"])
def source(request, shard_folder, band_folder, params) -> tuple[Reader, Transform, list[View]]:
    """120 training images, their transform and views."""
    reader = Reader(band_folder if request.param == "bands" else shard_folder, "train")
    changes = CHANGES if request.param == "bands" else None
    views = [view.model_copy(update={"bands": changes}) for view in params.views.values()]
    return reader, transform(params.dataset, reader), views


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_number_of_ranks_and_workers_sees_the_same_batches(source, here, ranks, workers) -> None:
    reader, eval_view, views = source
    reference = TrainSet(reader, eval_view, views, Plan(len(reader), 36, 7))
    assert reference.plan.steps_per_epoch == 3
    shares = [
        TrainSet(reader, eval_view, views, Plan(len(reader), 36, 7, rank, ranks)).batches(0, 6, workers)
        for rank in range(ranks)
    ]
    seen = []
    for step, parts in enumerate(zip(*shares, strict=True)):
        whole = reference[step]
        assert {len(part.labels) for part in parts} == {36 // ranks}
        assert torch.equal(torch.cat([part.positions for part in parts]), whole.positions)
        assert torch.equal(
            torch.cat([part.labels for part in parts]),
            torch.from_numpy(reader.labels(whole.positions.numpy())),
        )
        assert torch.equal(torch.cat([part.colour_params for part in parts], 1), whole.colour_params)
        moved = [reference.inputs(here)(batch).views for batch in (whole, *parts)]
        for view, images in enumerate(moved[0]):
            assert torch.equal(torch.cat([part[view] for part in moved[1:]]), images)
        for view, images in enumerate(whole.images):
            assert torch.equal(torch.cat([part.images[view] for part in parts]), images)
        seen.append(whole.positions)
    for epoch in (seen[:3], seen[3:]):
        assert len(torch.cat(epoch).unique()) == 108


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumed_at_any_step_sees_the_same_batches(source, workers) -> None:
    data = TrainSet(*source, Plan(120, 32, 7))
    whole = [data[step] for step in range(6)]
    for start in range(6):
        for expected, found in zip(whole[start:], data.batches(start, 6, workers), strict=True):
            assert torch.equal(expected.positions, found.positions)
            assert all(torch.equal(x, y) for x, y in zip(expected.images, found.images, strict=True))
            assert torch.equal(expected.colour_params, found.colour_params)


def test_views_differ_between_epochs_and_views(shard_folder, params) -> None:
    reader = Reader(shard_folder, "train")
    data = TrainSet(reader, transform(params.dataset), list(params.views.values()), Plan(len(reader), 120, 7))
    first, second = data[0], data[1]
    a, b = first.positions.argsort(), second.positions.argsort()
    assert not torch.equal(first.images[0][a], second.images[0][b])
    assert not torch.equal(first.images[0], first.images[1])
    assert not torch.equal(first.colour_params[0], first.colour_params[1])


def test_evaluation_reads_every_sample_once(shard_folder, params) -> None:
    reader = Reader(shard_folder, "val")
    data = EvalSet(reader, transform(params.dataset))
    expected = np.stack([centre(reader.pixels(position), 32, 32) for position in range(60)])
    for batch_size, workers in ((25, 2), (60, 1), (7, 0), (100, 2)):
        images = torch.cat([block.clone() for block in data.batches(batch_size, workers)])
        assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), expected)


def test_a_batch_has_the_groups_of_its_images(shard_folder, params, here) -> None:
    reader = Reader(shard_folder, "train")
    reader.groups = np.arange(len(reader)) * 7 % 5 - 1
    plan = Plan(len(reader), 8, 0, 0, 1)
    data = TrainSet(reader, transform(params.dataset), list(params.views.values()), plan)
    batch = data[2]
    assert np.array_equal(batch.groups.numpy(), reader.groups[batch.positions.numpy()])
    moved = data.inputs(here)(batch)
    assert torch.equal(moved.groups, batch.groups)


@pytest.mark.parametrize("workers", [0, 2])
def test_patches_of_a_jigsaw_are_views_of_their_own(shard_folder, params, here, workers) -> None:
    """They depend on (seed, epoch, sample, view) alone, and leave the other views as they are."""
    reader = Reader(shard_folder, "train")
    usual = params.views["random"]
    patches = View(**{**usual.model_dump(), "count": 9, "size": 10, "jigsaw": {"grid": 3, "side": 36}})
    plain = TrainSet(reader, transform(params.dataset), [usual], Plan(len(reader), 36, 7))[0]
    data = TrainSet(reader, transform(params.dataset), [usual, patches], Plan(len(reader), 36, 7))
    (batch,) = data.batches(0, 1, workers)
    assert [tuple(x.shape[1:]) for x in batch.images] == [(3, 32, 32)] * 2 + [(3, 10, 10)] * 9
    assert all(torch.equal(a, b) for a, b in zip(batch.images, plain.images, strict=False))
    assert torch.equal(batch.colour_params[:2], plain.colour_params)
    row, position = 20, int(batch.positions[20])
    rng = RandomNumbers(7, 0, position, 2)
    expected = np.empty((9, 10, 10, 3), np.uint8)
    cut_patches(reader.pixels(position), patches, rng, list(expected))
    for number in range(9):
        found = batch.images[2 + number][row].permute(1, 2, 0).numpy()
        assert np.array_equal(found, expected[number])
        if number:
            rng = RandomNumbers(7, 0, position, 2 + number)
        expected_params = np.array(draw_colour_params(patches, rng), np.float32)
        assert np.array_equal(batch.colour_params[2 + number, row].numpy(), expected_params)
    moved = data.inputs(here)(batch)
    assert [view.shape[-1] for view in moved.views] == [32] * 2 + [10] * 9
