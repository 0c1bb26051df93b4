"""The command `cl`: everything that works on an encoder file and needs neither Git, DVC nor params.yaml.

Each command is a function of its name in the module of its name, which `cl` offers too. It is imported when
it is called, so that --help answers at once. CONTRIBUTING.md adds one.
"""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

from cl.commands.defaults import ENCODER, FILES, MATCHES, TIMM
from cl.commands.outputs.classification import COLUMNS, encoder_beside
from cl.console.command import echo, entry_point
from cl.console.wording import counted
from cl.encoders.published import check_file


@click.group(context_settings={"show_default": True})
@click.version_option(package_name="cl")
def main() -> None:
    """Use a trained image encoder: any file or name that `cl.load` takes.

    IMAGES are files, folders, lists (.txt, a path on each line) and tables (.csv or .parquet with a column
    path), as many as you like. Results are written whole or not at all.
    """


class _Command(click.Command):
    """A command that says how its images are named, if words are left over."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        try:
            return super().parse_args(context, arguments)
        except click.UsageError as error:
            if "unexpected extra" not in error.message:
                raise
            options = {option for parameter in self.params for option in parameter.opts}
            remedy = "quote a name that has spaces"
            if here := options & {"--images", "--train"}:
                remedy = f"put {here.pop()} before each image, or before their folder, and {remedy}"
            raise click.UsageError(f"{error.message}; {remedy}", context) from error


main.command_class = _Command


def _together(*options: Callable[..., Any]) -> Callable[..., Any]:
    """One decorator for several options, listed in this order."""
    return lambda function: reduce(lambda decorated, option: option(decorated), reversed(options), function)


def _columns(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """The columns by the names that they are given; a second column of a name would replace the first."""
    columns = dict(each.partition("=")[::2] for each in given)
    if len(columns) < len(given) or not all(columns.values()):
        raise click.BadParameter(
            f"found {' and '.join(given)}, expected NAME=COLUMN, each NAME once; join columns of classes: "
            "label=cat,dog"
        )
    return columns


PATH, SIZE = click.Path(path_type=Path), click.IntRange(min=1)
TABLE = click.option("--to", type=PATH, help="A file to write: .csv or .parquet.")
PAGE = click.option("--to", type=PATH, help="A file to write: .html (with pictures), .csv or .parquet.")
table_options = _together(
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="NAME=COLUMN",
        callback=_columns,
        help="What the table calls path, label or group, such as label=species; or a column per class: "
        "label=cat,dog.",
    ),
    click.option("--separator", help="Between the labels in a cell.  [default: ;]"),
)
UNGROUPED = click.option("--ungrouped", is_flag=True, help="Each image stands alone: do not look for bursts.")
labelled_options = _together(
    click.option("--train", multiple=True, required=True, type=PATH, help="Labelled images."),
    click.option(
        "--val",
        multiple=True,
        type=PATH,
        help="Other labelled images to test on; without it, a share of the first is held out.",
    ),
    click.option(
        "--labels",
        type=PATH,
        help="A table with the columns path and label, optionally group, instead of folders.",
    ),
    table_options,
    click.option("--holdout", default=0.2, help="The share that is held out."),
    UNGROUPED,
    click.option("--k", type=SIZE, default=20, help="Neighbours that vote."),
)
ACROSS = click.option(
    "--across", metavar="COLUMN", help="Also classify the images of each value by those of others."
)
encoder_options = _together(
    click.option(
        "--encoder",
        default=ENCODER,
        help="A checkpoint, or a name such as torchvision:resnet50 or timm:convnext_tiny.fb_in1k.",
    ),
    click.option(
        "--prefix", help="Which encoder to use if the file contains several, for example module.encoder_q."
    ),
)
size_options = _together(
    click.option(
        "--resize",
        type=SIZE,
        help="Short side in pixels, for an encoder whose file records no transform.  [default: 256]",
    ),
    click.option(
        "--crop",
        type=SIZE,
        help="Side in pixels of the centre crop, given together with --resize.  [default: 224]",
    ),
)


@main.command("advise", short_help="Tell whether to train an encoder on your images.")
@click.argument("folder", type=PATH)
@click.option(
    "--encoder", "encoders", multiple=True, help="As elsewhere; may be repeated.  [default: those at hand]"
)
@click.option("--labels", type=PATH, help="A table with the columns path and label, instead of folders.")
@table_options
@UNGROUPED
@click.option(
    "--minutes",
    type=click.FloatRange(0, 1e6),
    default=3.0,
    help="Of training, about; 0: none.",
)
@click.option("--to", type=PATH, help="A table of the labels and groups, for training: .csv or .parquet.")
@entry_point
def advise_command(**options: Any) -> None:
    """Tell whether training an encoder further on the images in FOLDER is worth it, and with which command.

    Looks at the images, measures the encoders at hand on them, trains the best one for a few minutes, and
    judges it on other images. At hand are models/backbone.safetensors and what torchvision and timm have
    downloaded before. Folders in FOLDER are classes, below train/ and val/ if both are there. Without labels,
    nothing is trained: no number would show whether it helped.
    """
    from cl.commands.advise import advise

    echo("\n".join(advise(**options).lines()))


@main.command("classify", short_help="Classify images from a few labels.")
@click.option("--labels", help="A .csv or .parquet table with the columns path and label, optionally group.")
@table_options
@click.option("--images", multiple=True, help="A file, folder, list or table of images; may be repeated.")
@click.option("--features", help="A file of cl embed, instead of --images and --encoder.")
@click.option("--classifier", help="A file of --save, instead of --labels.")
@click.option("--to", help="The predictions to write: .csv or .parquet.")
@click.option("--save", help="The classifier to write, for later images: .safetensors.")
@click.option("--every-class", is_flag=True, help=f"A column for each class, also of more than {COLUMNS}.")
@click.option(
    "--finetune", is_flag=True, help="Train the encoder too, if held-out images show that it helps."
)
@UNGROUPED
@encoder_options
@size_options
@entry_point
def classify_command(**options: Any) -> None:
    """Train a classifier on the images in LABELS, say how good it is, and classify all IMAGES.

    A label `a;b`, or two rows, give an image two labels. Images without a label are predicted. The folds of
    cross-validation keep a group together, or bursts if the table has no groups. The probabilities of a
    labelled image are of a classifier that was not trained on it.

    --finetune trains copies of the encoder on two thirds of the labelled images each, and uses a fine-tuned
    encoder if the log-loss of the held-out third falls by more than its standard error. --save then writes
    the encoder too.

    \b
    cl classify --labels labels.csv --images photos --to predictions.csv --save classifier.safetensors
    cl classify --classifier classifier.safetensors --images new --to more.csv
    """  # noqa: D301
    from cl.commands.classify import classify

    answer = classify(**options)
    echo(repr(answer))
    for option in ("to", "save"):
        if options[option]:
            echo(f"wrote {options[option]}")
    if options["save"] and answer.finetuning and answer.finetuning.better:
        beside = encoder_beside(Path(options["save"]))
        echo(f"wrote {beside}: give it as --encoder with this classifier")


@main.command("compare", short_help="Tell whether one encoder is better than another.")
@click.argument("a")
@click.argument("b")
@labelled_options
@TABLE
@size_options
@ACROSS
@entry_point
def compare_command(a: str, b: str, val: tuple[Path, ...], **options: Any) -> None:
    """Tell whether encoder B is better than encoder A on labelled images.

    Both are checkpoints, or names such as timm:convnext_tiny.fb_in1k. An image's class is the folder that it
    is in, below the given folder, or its label in a table. The measures are kNN, logistic regression, and
    nearest class means of 1, 4 and 16 images per class. B - A, in points, is paired image by image; the
    verdict is whether the 95 % interval of the mean of all measures excludes 0. Equal encoders are called
    different in 5 of 100 comparisons.
    """
    from cl.commands.compare import compare

    comparison = compare(a, b, val=val or None, **options)
    _echo_counts(comparison)
    images = comparison.val_images + comparison.copies
    share = 100 * comparison.copies / images
    echo(f"left out validation images that are also training images: {comparison.copies} ({share:.1f} %)")
    width = max(22, *(len(row.measure) for row in comparison.rows))
    echo(f"{'':<{width}}{'A':>8}{'B':>8}     B - A")
    for row in comparison.rows:
        within = f"[{row.low:.1f}, {row.high:.1f}]"
        echo(f"{row.measure:<{width}}{row.a:6.1f} %{row.b:6.1f} %{row.difference:+10.1f} {within}")
    echo(comparison.result.sentence())


def _echo_counts(result: Any) -> None:
    echo(
        f"{counted(result.train_images, 'training images')}, "
        f"{counted(result.val_images, 'validation images')}, {counted(result.classes, 'classes')}"
    )


@main.command("duplicates", short_help="Find images that are copies of each other.")
@click.argument("features", nargs=-1, required=True, type=PATH)
@click.option("--images", type=PATH, help="The images' folder, if it has moved or FEATURES do not record it.")
@encoder_options
@PAGE
@entry_point
def duplicates_command(features: tuple[Path, ...], to: Path | None, **options: Any) -> None:
    """Print groups of images in FEATURES, a file of `cl embed`, that are copies of each other.

    Copies may differ in size, compression, a small crop, mirroring or brightness. With two files, of training
    and validation images, warns if these share images. The encoder must be the one that gave the features; it
    embeds copies made of some images, from which the thresholds come.
    """
    from cl.commands.duplicates import duplicates

    copies = duplicates(features, to=to, **options)
    groups = copies[-1].group if copies else 0
    echo(
        f"{counted(groups, 'groups')} of copies, {counted(len(copies), 'images')}" + (f": {to}" if to else "")
    )
    for copy in [] if to else copies:
        split = f"{copy.split}  " if len(features) > 1 else ""
        echo(f"{copy.group}  {copy.cosine:.3f}  {split}{copy.name}")


@main.command("embed", short_help="Write the features of images.")
@click.argument("images", nargs=-1, required=True, type=PATH)
@click.option(
    "--to",
    required=True,
    type=PATH,
    help="The file to write: .parquet, .npy with the names in a .txt beside it, or .csv.",
)
@encoder_options
@size_options
@click.option("--patches", is_flag=True, help="Features of places, row by row from the top left, instead.")
@entry_point
def embed_command(images: tuple[Path, ...], to: Path, **options: Any) -> None:
    """Write the features of IMAGES: files, folders, lists (.txt) or tables (.csv, .parquet) of images.

    Names start from the folder if one folder, list or table is given, and are otherwise as typed. After a
    kill, the same command continues. Images that cannot be read are listed in <TO>.skipped.csv. All visible
    GPUs are used, or CL_PROCESSES processes.
    """
    check_file(options["encoder"])
    from cl.commands.embed import embed
    from cl.console import launch

    launch.on_all_devices(embed)(images, to=to, **options)


@main.command("evaluate", short_help="Measure how well an encoder separates labelled images.")
@labelled_options
@TABLE
@encoder_options
@size_options
@click.option("--predict", metavar="COLUMN", help="Also measure how well the features predict this column.")
@ACROSS
@entry_point
def evaluate_command(val: tuple[Path, ...], **options: Any) -> None:
    """Measure how well the features of an encoder separate the classes of labelled images.

    An image's class is the folder that it is in, below the given folder, or its label in a table. The encoder
    stays as it is: each image gives one feature vector, without augmentation. kNN: the nearest training
    images by cosine vote with weight exp(cosine / 0.07). Logistic regression: multinomial, by L-BFGS with
    C = 1, on standardised features. Percentages are of the validation images, with 95 % intervals, in which
    images of a group (a column of the table) or burst and equal files count together.
    """
    check_file(options["encoder"])
    from cl.commands.evaluate import evaluate

    evaluation = evaluate(val=val or None, **options)
    _echo_counts(evaluation)
    width = max(20, *(len(row.measure) for row in evaluation.measures))
    for row in evaluation.measures:
        within = "(one group of images: no interval)"
        if row.low is not None:
            within = f"[{row.low:.1f}, {row.high:.1f}]"
        echo(f"{row.measure:<{width}} {row.percent:5.1f} % {within}")


@main.command("export", short_help="Write an encoder in the format of another program.")
@click.argument("format", type=click.Choice([*FILES, TIMM]))
@click.option(
    "--to",
    type=PATH,
    help="The file to write, or the folder for timm; default: exports/<format>.<suffix>.",
)
@encoder_options
@size_options
@entry_point
def export_command(format: str, **options: Any) -> None:
    """Write an encoder in the FORMAT of another program.

    timm: a folder for timm.create_model("local-dir:..."). onnx: images of the encoder's size to features.
    """
    check_file(options["encoder"])
    from cl.commands.export import export

    done = export(format, **options)
    echo(f"{done.path}: {done.network}, {done.width} features; {done.inputs}")


@main.command("search", short_help="Find the images most similar to others.")
@click.argument("features", type=PATH)
@click.argument("queries", nargs=-1, required=True, type=click.Path())
@click.option("--top", type=SIZE, default=MATCHES, help="Images per query.")
@encoder_options
@PAGE
@entry_point
def search_command(features: Path, queries: tuple[str, ...], to: Path | None, **options: Any) -> None:
    """Print the images in FEATURES, a file of `cl embed`, that are most similar to QUERIES, with cosines.

    QUERIES are names in FEATURES, images, folders, lists or tables of images, or other files of features. A
    name in FEATURES comes before a file of that name here, which is ./NAME. Images are embedded by the
    encoder, which must be the one that gave the features.
    """
    from cl.commands.search import search

    matches = search(features, queries, to=to, **options)
    if to:
        count, top = matches.positions.shape
        echo(f"{to}: {counted(count * top, 'rows')}, {top} for each query")
        return
    for query, rank, name, cosine in matches.rows():
        if rank == 1 and len(matches.queries) > 1:
            echo(query)
        echo(f"{cosine:.3f} {name}")
