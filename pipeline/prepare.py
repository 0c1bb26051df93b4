"""prepare: raw images to WebDataset shards, and the embedded detection scenes."""

from typing import TYPE_CHECKING

import click

from pipeline import command, locations

if TYPE_CHECKING:
    from cl.console.progress import Progress
    from cl.shards.manifest import Manifest


@click.command()
@command.entry_point
def main() -> None:
    """Write data/shards and data/scenes from the data set that params.yaml names.

    Raw data is expected below CL_RAW (default data/raw).
    """
    dataset = command.params().dataset
    from cl.detection import scenes
    from cl.runtime.cores import cores
    from cl.runtime.kinds import module_of
    from cl.shards import writing

    progress = command.progress("prepare")
    with (
        writing.exclusive(locations.SHARDS.parent),
        command.results("prepare", folder=False) as results,
        command.published(locations.SHARDS, resumable=True) as shards_folder,
        command.published(locations.SCENES) as scenes_folder,
    ):
        splits = module_of("sources", dataset.kind).splits(dataset, locations.raw())
        scenes.write(dataset.scenes, scenes_folder)
        # Shards come last: a run killed after the last of them starts over.
        with progress.count(len(splits.train) + len(splits.val), "images") as report:
            manifest = writing.write(splits, dataset.kind, dataset, shards_folder, report, workers=cores())
        _say_what_was_left_out(progress, splits.ignored, manifest)
        for name, split in manifest.splits.items():
            results.metrics |= {f"{name}_images": split.images, f"{name}_skipped": len(split.skipped)}
        results.metrics["classes"] = len(manifest.classes)
        results.notes["ignored_files"] = splits.ignored


def _say_what_was_left_out(progress: "Progress", ignored: int, manifest: "Manifest") -> None:
    if ignored:
        progress.say(f"ignored {ignored} files among the images whose names are not those of images")
    for name, split in manifest.splits.items():
        for key, reason in split.skipped.items():
            progress.say(f"left out {name}/{key}: {reason}")


if __name__ == "__main__":
    main()
