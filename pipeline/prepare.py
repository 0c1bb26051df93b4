"""prepare: raw images to WebDataset shards, and the embedded detection scenes."""

import click

from pipeline import command, locations


@click.command()
@command.entry_point
def main() -> None:
    """Write data/shards and data/scenes from the data set that params.yaml names.

    Raw data is looked for below CL_RAW (default data/raw).
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
        command.published(locations.SHARDS, resumable=True) as folder,
        command.published(locations.SCENES) as drawn,
    ):
        splits = module_of("sources", dataset.kind).splits(dataset, locations.raw())
        scenes.write(dataset.scenes, drawn)
        # Last, as a run that is killed after the last shard starts over.
        with progress.count(len(splits.train) + len(splits.val), "images") as report:
            manifest = writing.write(splits, dataset.kind, dataset, folder, report, workers=cores())
        if splits.ignored:
            progress.say(f"{splits.ignored} files among the images are none by their names")
        for name, split in manifest.splits.items():
            results.metrics |= {f"{name}_images": split.images, f"{name}_skipped": len(split.skipped)}
            for key, reason in split.skipped.items():
                progress.say(f"left out {name}/{key}: {reason}")
        results.metrics["classes"] = len(manifest.classes)
        results.notes["ignored_files"] = splits.ignored


if __name__ == "__main__":
    main()
