"""Images to WebDataset shards, with the same bytes by any number of processes and after restarts."""

import io
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cl.console.wording import counted
from cl.images.image import UNLABELLED, Image, Splits
from cl.images.listing import VALUES, Subset, hash_of, repeated
from cl.shards import duplicates, levels, tiles
from cl.shards.manifest import INDEX, Manifest, Split, sha256_of
from cl.shards.packing import COUNTED, Packed
from cl.shards.survey import Team
from cl.shards.work import Work, load_note, run
from cl.sources import Storage

ALONE = Team()


def write(
    splits: Splits,
    kind: str,
    storage: Storage,
    folder: Path,
    team: Team = ALONE,
    *,
    table_sha256: str | None = None,
) -> Manifest:
    """Write the shards, index and manifest of both splits; the caller must lock `folder`.

    Shards that a killed call with the same arguments finished are kept.

    Args:
        table_sha256: of the table that lists the images, for the manifest.

    Raises:
        ValueError: a key is not unique, a class or split would be empty, or a worker was killed.
        OSError: for example, the disk is full; no incomplete shard is left behind.
    """
    superfluous = duplicates.superfluous(splits, team) if storage.deduplicate else None
    kept = splits if superfluous is None else duplicates.without(splits, superfluous)
    work = _plan(kept, storage, folder, team)
    work.begin(kind)
    with team.count(len(kept.train) + len(kept.val), "images") as report:
        run(work, report, team.workers)
    manifest = _manifest(splits, kind, work, superfluous, table_sha256)
    content = manifest.model_dump_json(indent=1, exclude_defaults=True)  # omits features that the data lacks
    (folder / "manifest.json").write_text(content + "\n")
    shutil.rmtree(work.notes)
    return manifest


def _manifest(
    splits: Splits, kind: str, work: Work, superfluous: np.ndarray | None, table_sha256: str | None
) -> Manifest:
    """Write the index, keys, groups and copies; return the manifest."""
    try:
        written = {split: _finish(split, splits.classes, work) for split in work.orders}
    except ValueError:
        shutil.rmtree(work.folder)
        raise
    copies = duplicates.copies(_digests(work)) if superfluous is None else superfluous
    counts = duplicates.write_list(splits, copies, work.folder / "duplicates.csv")
    if counts and work.storage.deduplicate:
        counts["left_out"] = counts.pop("copies")
    return Manifest(
        kind=kind,
        storage=_settings(work),
        classes=splits.classes,
        classes_sha256=sha256_of(splits.classes),
        splits=written,
        table_sha256=table_sha256,
        levels=work.levels,
        bands=work.bands,
        drawn=work.storage.drawn,
        duplicates=counts,
    )


def _plan(splits: Splits, storage: Storage, folder: Path, team: Team) -> Work:
    """Assign images and tiles to shards, and measure the levels of deep images, or the bands."""
    listed: dict[str, Sequence[Image]] = {"train": splits.train, "val": splits.val}
    bands = levels.measure_bands(splits.train, storage.channels, team) if storage.channels else None
    measured = {} if bands else levels.measure(splits.train, storage, team)
    if storage.tile:
        listed = {split: tiles.cut(images, storage.tile, team) for split, images in listed.items()}
    for images in listed.values():
        _check_keys(images)
    orders = {split: _shuffled(images, storage.tile is not None) for split, images in listed.items()}
    return Work(orders, storage, measured, folder, bands)


def _shuffled(listed: Sequence[Image], tiled: bool) -> Sequence[Image]:
    """Shuffle the images, because WebDataset readers shuffle only within a window.

    The tiles of an image stay together, so it is decoded once.
    """
    if not tiled:
        return Subset(listed, _permutation(len(listed), len(listed)))
    firsts = np.flatnonzero([tiles.begins(image) for image in listed])
    images = np.split(np.arange(len(listed)), firsts[1:])
    return Subset(listed, np.concatenate([images[i] for i in _permutation(len(listed), len(images))]))


def _permutation(seed: int, images: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=seed)).permutation(images)


def _digests(work: Work) -> np.ndarray:
    """(n, 2) uint64: the digests of all files, in the order of the source's lists."""
    by_split = []
    for split, order in work.orders.items():
        shuffled = [load_note(work.note(job)).digests for job in work.jobs(split)]
        digests = np.concatenate([duplicates.as_array([]), *shuffled])
        listed = np.empty_like(digests)
        listed[_permutation(len(order), len(digests))] = digests
        by_split.append(listed)
    return np.concatenate(by_split)


def _check_keys(listed: Sequence[Image]) -> None:
    """Compare keys by 8-byte hashes: a dictionary of all keys might not fit into memory."""
    hashes = np.zeros(len(listed), np.uint64)
    for number, image in enumerate(listed):
        hashes[number] = hash_of(image.key)
    places: dict[str, str] = {}
    for number in np.flatnonzero(np.isin(hashes, repeated(hashes))).tolist():
        image = listed[number]
        if image.key in places:
            raise ValueError(
                f"{places[image.key]} and {image.place} would both be stored as {image.key!r}; "
                "rename one of them"
            )
        places[image.key] = image.place


def _finish(split: str, classes: list[str], work: Work) -> Split:
    """Write the index and keys of a split from its notes, without empty shards."""
    kept: list[Packed] = []
    skipped: dict[str, str] = {}
    counts = Counter(dict.fromkeys(COUNTED, 0))
    for job in work.jobs(split):
        packed = load_note(work.note(job))
        skipped |= packed.skipped
        counts.update(packed.counts)
        if packed.shard.images:
            packed.rows["shard"] = len(kept)
            kept.append(packed)
    index = np.concatenate([np.empty(0, INDEX), *(packed.rows for packed in kept)])
    keys = np.concatenate([np.empty(0, "S1"), *(packed.keys for packed in kept)])
    _check_classes(split, classes, work.orders[split], index["label"], skipped)
    _save(work.folder / f"{split}.npy", index)
    _save(work.folder / f"{split}_keys.npy", keys)
    values = {}
    for role, numbers in _columns(work.orders[split], keys).items():
        _save(work.folder / f"{split}_{'groups' if role == 'group' else role}.npy", numbers)
        values[role] = len(np.unique(numbers[numbers >= 0]))
    return Split(
        images=len(index),
        groups=values.pop("group", None),
        values=values,
        shards=[packed.shard for packed in kept],
        skipped=skipped,
        **counts,
    )


def _columns(listed: Sequence[Image], keys: np.ndarray) -> dict[str, np.ndarray]:
    """(n,) int64 for each of VALUES that the data has: the number of each image's name, -1 for none."""
    names: dict[str, set[str]] = {role: set() for role in VALUES}
    for image in listed:
        for role, known in names.items():
            known.add(getattr(image, role))
    found = {}
    for role, known in names.items():
        if ordered := sorted(known - {""}):
            numbers = {"": -1, **{name: number for number, name in enumerate(ordered)}}
            by_key = {image.key.encode(): numbers[getattr(image, role)] for image in listed}
            found[role] = np.array([by_key[key] for key in keys.tolist()], np.int64)
    return found


def _check_classes(
    split: str, classes: list[str], listed: Sequence[Image], labels: np.ndarray, skipped: dict[str, str]
) -> None:
    """Every class needs a training image. Validation may lack classes, but not because of damaged files."""
    expected = {image.label for image in listed} - {UNLABELLED} if split == "val" else range(len(classes))
    empty = sorted(set(expected) - set(np.unique(labels).tolist()))
    if empty or (len(listed) and not len(labels)):
        examples = {reason: key for key, reason in skipped.items()}
        reasons = "; ".join(f"{key}: {reason}" for reason, key in list(examples.items())[:3])
        what = (
            f"class {classes[empty[0]]}" if empty else f"the data set, of {counted(len(listed), 'images')},"
        )
        raise ValueError(f"{what} has no readable image in {split} ({reasons})")


def _settings(work: Work) -> dict[str, Any]:
    """The storage settings that affected the images."""
    has_effect = {
        "percentiles": bool(work.levels),
        "tile": work.storage.tile is not None,
        "deduplicate": work.storage.deduplicate,
        "channels": work.bands is not None,
    }
    without_effect = {name for name in has_effect if not has_effect[name]} | {"store"}
    settings = work.storage.model_dump(include=set(Storage.model_fields) - without_effect)
    return settings | {"encode": "raw"} if work.bands else settings


def _save(path: Path, array: np.ndarray) -> None:
    content = io.BytesIO()  # np.save to a file would hide why writing fails
    np.save(content, array)
    path.write_bytes(content.getbuffer())
