"""The order of samples: exact, shuffled, near-sequential on the disk, and cheap to plan at scale."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from benchmarks.memory import growth
from cl.data.order import CHUNK, WINDOW, Order, Plan
from cl.data.reader import Reader
from cl.shards.manifest import INDEX, Manifest, Shard, Split, sha256_of

SPAN = CHUNK * WINDOW


def whole(samples: int, seed: int, epoch: int) -> np.ndarray:
    return Order(samples, seed, epoch)[0:samples]


@pytest.mark.parametrize("samples", [1, 63, 64, 130, 1000, SPAN, SPAN + 1, 3 * SPAN + 70])
def test_an_epoch_is_a_permutation(samples) -> None:
    for epoch in range(4):  # the short chunk is in a different window each time
        assert np.array_equal(np.sort(whole(samples, 3, epoch)), np.arange(samples))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    assert np.array_equal(whole(1000, 1, 2), whole(1000, 1, 2))
    for other in ((1, 3), (2, 2)):
        assert (whole(1000, 1, 2) != whole(1000, *other)).mean() > 0.9


@pytest.mark.parametrize("epoch", range(3))
def test_any_stretch_is_that_part_of_the_epoch(epoch) -> None:
    samples = 3 * SPAN + 70
    expected = whole(samples, 0, epoch)
    for start, stop in (
        (0, 1),
        (5, 900),
        (SPAN - 3, SPAN + 3),
        (SPAN - 70, 3 * SPAN),
        (samples - 1, samples),
        (64, 64),
    ):
        assert np.array_equal(Order(samples, 0, epoch)[start:stop], expected[start:stop])


def test_windows_read_whole_chunks() -> None:
    """Cold disks and object stores see long reads: a whole chunk is needed within one window."""
    chunks, counts = np.unique(whole(10 * SPAN, 0, 0)[:SPAN] // CHUNK, return_counts=True)
    assert len(chunks) == WINDOW
    assert (counts == CHUNK).all()


def test_the_order_is_shuffled() -> None:
    """Every sample is equally likely everywhere, and neighbours in an epoch are not neighbours on disk."""
    samples, epochs, parts = 8 * SPAN, 40, 8
    table = np.zeros((parts, parts))  # part of the disk by part of the epoch
    adjacent = 0
    for epoch in range(epochs):
        order = whole(samples, 0, epoch)
        np.add.at(table, (order * parts // samples, np.arange(samples) * parts // samples), 1)
        adjacent += int((np.abs(np.diff(order)) == 1).sum())
    chunks = epochs * samples / CHUNK  # whole chunks are drawn, so a cell varies like a number of chunks
    assert table.sum() == epochs * samples
    statistic = ((table / CHUNK - chunks / parts**2) ** 2 / (chunks / parts**2)).sum()
    assert statistic < 90  # chi squared, 49 degrees of freedom: one seed in 3,000 exceeds 90
    assert adjacent / (epochs * samples) < 3 * 2 / SPAN  # two of SPAN in a window would be adjacent by chance


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_a_batch(ranks) -> None:
    plans = [Plan(1000, 96, 5, rank, ranks) for rank in range(ranks)]
    for step in range(25):
        epoch, batch = Plan(1000, 96, 5).step(step)
        shares = [plan.step(step) for plan in plans]
        assert {e for e, _ in shares} == {epoch} == {step // 10}
        assert np.array_equal(np.concatenate([share for _, share in shares]), batch)


@pytest.mark.parametrize("samples", [1000, 3 * SPAN + 70])
def test_a_batch_is_a_stretch_of_the_order(samples) -> None:
    for step in range(2 * (samples // 96)):
        epoch, batch = Plan(samples, 96, 5).step(step)
        start = step % (samples // 96) * 96
        assert sorted(batch) == sorted(Order(samples, 5, epoch)[start : start + 96])


@pytest.mark.parametrize(("ranks", "times"), [(8, 1.2), (64, 2.2)])
def test_most_chunks_are_read_by_one_process_or_two(ranks, times) -> None:
    samples, batch = 10 * SPAN, 4096
    chunks = 0
    for rank in range(ranks):
        plan = Plan(samples, batch, 5, rank, ranks)
        positions = np.concatenate([plan.step(step)[1] for step in range(plan.steps_per_epoch)])
        chunks += len(np.unique(positions // CHUNK))
    assert samples / CHUNK <= chunks < times * samples / CHUNK


def test_the_part_of_a_process_has_all_classes_even_where_they_lie_together() -> None:
    """Shards that someone else wrote may be in the order of classes; batch norm sees a part of a batch."""
    samples, batch, classes = 4 * SPAN, 256, 10
    plan = Plan(samples, batch, 5, 3, 8)
    labels = np.concatenate([plan.step(s)[1] * classes // samples for s in range(samples // batch)])
    assert np.bincount(labels) / len(labels) == pytest.approx(1 / classes, rel=0.25)


def test_batches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=128 exceeds the 120 images; choose"):
        Plan(120, 128, 0)
    with pytest.raises(ValueError, match="batch_size=32 must be a multiple of the 3"):
        Plan(120, 32, 0, 0, 3)


@pytest.mark.parametrize(
    ("samples", "steps", "most"),
    [(10**8, range(100), 40e6), (10**7, range(0, 73_230, 2441), 12e6)],
)
def test_huge_epochs_take_little_memory(samples, steps, most) -> None:
    """The order is computed window by window; of past epochs, which take 1.3 MB here, nothing is kept."""
    tracemalloc.start()
    for step in steps:
        Plan(samples, 4096, 0).step(step)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < most


def imagenet(folder: Path) -> None:
    """An index like ImageNet's, with sparse files of the right size."""
    images, size = 1_281_167, 110_000
    index = np.zeros(images, INDEX)
    number = np.arange(images)
    index["shard"], index["offset"], index["length"] = number // 1000, number % 1000 * size, size
    index["label"] = number % 1000
    np.save(folder / "train.npy", index)
    shards = []
    for shard in range(-(-images // 1000)):
        path = folder / f"train-{shard:06d}.tar"
        with path.open("wb") as file:
            file.truncate(1000 * size)
        shards.append(
            Shard(name=path.name, images=min(1000, images - shard * 1000), bytes=1000 * size, sha256="")
        )
    split = Split(images=images, shards=shards, reencoded=0, turned=0, skipped={})
    classes = [str(label) for label in range(1000)]
    manifest = Manifest(
        kind="imagenet",
        storage={},
        classes=classes,
        classes_sha256=sha256_of(classes),
        splits={"train": split},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())


def test_planning_an_epoch_of_imagenet_takes_little_memory(tmp_path) -> None:
    """Including opening the shards; then images are read from more shards than are kept open."""
    imagenet(tmp_path)

    def plan() -> None:
        reader = Reader(tmp_path, "train")
        epoch = Plan(len(reader), 4096, 0)
        for step in range(epoch.steps_per_epoch):
            reader.labels(epoch.step(step)[1])
        for position in range(0, len(reader), 2000):
            assert len(reader.read(position)) == 110_000

    assert growth(plan) < 200e6
