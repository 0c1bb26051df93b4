"""prepare: raw images to WebDataset shards, and the embedded detection scenes."""

from collections import Counter
from collections.abc import Iterator

import click

from cl.console.wording import counted, grouped, lines
from cl.images.decoding import NO_HEIC
from cl.images.image import Splits
from cl.runtime.cores import cores, workers
from cl.runtime.files import exclusive_with_children
from cl.runtime.registry import module_of
from cl.shards import scenes, writing
from cl.shards.manifest import Manifest
from cl.shards.survey import Team
from cl.sources import Source, check_labels
from pipeline.support import command, locations, provenance

A_COPY = "a copy of another image"
NAMED = 10  # unreadable images
CORES, LARGE = 12, 60  # per GPU, for original files of ImageNet; kB of an image, on average


@click.command()
@command.entry_point
def main() -> None:
    """Write data/shards and data/scenes from the data set that params.yaml names.

    Raw data is expected below CL_RAW (default data/raw). All cores of this machine share the work.
    """
    dataset = command.params().dataset

    progress = command.progress("prepare")
    with (
        exclusive_with_children(locations.SHARDS.parent),
        command.results("prepare", folder=False) as results,
        command.published(locations.SHARDS, resumable=True) as shards_folder,
        command.published(locations.SCENES) as scenes_folder,
    ):
        table_sha256 = locations.table_sha256(dataset)
        splits = _listed(dataset)
        scenes.write(dataset.scenes, scenes_folder)
        # Shards come last: a run killed after they are complete would start over.
        manifest = writing.write(
            splits,
            dataset.kind,
            dataset,
            shards_folder,
            Team(workers(cores()), progress.count),
            table_sha256=table_sha256,
        )
        unreadable = _unreadable(splits, manifest)
        for line in _remarks(splits, unreadable, manifest, dataset):
            progress.say(line)
        for name, split in manifest.splits.items():
            results.metrics |= {f"{name}_images": split.images, f"{name}_skipped": len(split.skipped)}
        results.metrics["classes"] = len(manifest.classes)
        results.metrics["duplicates"] = manifest.duplicates.get("copies", 0)
        in_other = 0 if dataset.deduplicate else manifest.duplicates.get("in_other_split", 0)
        results.metrics["copies_in_other_split"] = in_other
        reasons = Counter(unreadable.values())
        results.notes["left_out"] = dict(grouped(splits.left_out) + grouped(reasons))
        if copies := manifest.duplicates.get("left_out"):
            results.notes["left_out"][A_COPY] = copies
        provenance.check_unchanged("prepare")


def _listed(dataset: Source) -> Splits:
    """The images of the data set, after checking their labels."""
    splits = module_of("sources", dataset.kind).splits(dataset, locations.raw())
    train, val = check_labels(splits, dataset.labels)
    if dataset.labels == "some":
        listed = len(splits.train) + len(splits.val)
        splits.remarks.append(f"{train + val} of {listed} images have a label, {val} of them for validation")
    return splits


def _unreadable(splits: Splits, manifest: Manifest) -> dict[str, str]:
    """File suffix and reason for each unreadable image, by key."""
    skipped = {key: reason for split in manifest.splits.values() for key, reason in split.skipped.items()}
    images = (*splits.train, *splits.val) if skipped else ()
    suffixes = {image.key: image.path.suffix for image in images if image.key in skipped}
    return {key: f"unreadable {suffixes[key]}, {reason}" for key, reason in skipped.items()}


def _remarks(
    splits: Splits, unreadable: dict[str, str], manifest: Manifest, dataset: Source
) -> Iterator[str]:
    """What was left out, how many images are copies, what images lose, and whether cores are few."""
    yield from (*splits.remarks, *lines(splits.left_out))
    for key, reason in list(unreadable.items())[:NAMED]:
        yield f"left out {key}: {reason}"
    yield from lines(Counter(list(unreadable.values())[NAMED:]), "more images")
    if unreadable:
        yield f"{locations.SHARDS}/manifest.json lists all unreadable images"
    if any(NO_HEIC in reason for reason in unreadable.values()):
        yield "once pillow-heif is installed, `dvc repro -f prepare` reads the HEIC images"
    if counts := manifest.duplicates:
        details = (
            f"{counts['in_other_split']} of them in the other split and {counts['with_other_label']} with "
            f"another label; {locations.SHARDS}/duplicates.csv lists them"
        )
        if "left_out" in counts:
            yield f"left out {counted(counts['left_out'], 'files')}: {A_COPY}, {details}"
        else:
            copies = f"{counted(counts['copies'], 'images')} with the same content as another"
            yield f"{copies}, {details}, and dataset.deduplicate=true leaves them out"
    if bands := manifest.bands:
        missing = "" if bands.missing is None else f"; {bands.missing:g} means no data"
        yield f"bands {', '.join(bands.names)}, stored as {bands.dtype}{missing}"
    if several := sum(split.several_frames for split in manifest.splits.values()):
        yield f"{counted(several, 'files')} with several frames or pages: only the first is used"
    if flat := sum(split.flat for split in manifest.splits.values()):
        shown = counted(flat, "tiles" if dataset.tile else "images")
        yield (
            f"{shown} of more than 8 bits show nothing between the black and white levels "
            f"{dict(manifest.levels)}: check dataset.percentiles, and whether some values mean missing data"
        )
    train, wanted = manifest.splits["train"], CORES * command.gpus()
    kilobytes = sum(shard.bytes for shard in train.shards) / max(train.images, 1) / 1000
    are_copied = dataset.encode == "copy" and not dataset.shrink and not dataset.channels
    if cores() < wanted and kilobytes > LARGE and are_copied:
        yield (
            f"decoding images of {kilobytes:.0f} kB as fast as the GPUs train may take {wanted} cores, found "
            f"{cores()}: `-S dataset.shrink=256` needs 0.4 of them"
        )


if __name__ == "__main__":
    main()
