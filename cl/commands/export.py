"""export: write an encoder in the format of another program."""

import re
from dataclasses import dataclass
from os import fspath
from pathlib import Path

from cl.commands.defaults import ENCODER, FILES, FOLDERS
from cl.commands.inputs.paths import File
from cl.commands.outputs.tables import checked, target_of, through_link
from cl.data.transform import Transform
from cl.encoders import foreign, formats
from cl.encoders.encoder import IMAGENET, transform_in, with_size
from cl.networks.backbones import check_size
from cl.runtime.tensor_files import licence

LICENSE = re.compile(r"[a-z0-9.-]+")  # a name on the hub


@dataclass(frozen=True)
class Exported:
    """What was written.

    network: the name of the architecture.
    width: features per image.
    inputs: how images must be preprocessed.
    """

    path: Path
    network: str
    width: int
    inputs: str


def export(
    format: str,
    *,
    encoder: File = ENCODER,
    to: File | None = None,
    prefix: str | None = None,
    license: str | None = None,
    card: File | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> Exported:
    """Write an encoder, without a classifier, in the format of another program.

    Args:
        format: torchvision (safetensors), detectron2 (.pkl), onnx (for images of the encoder's crop), timm (a
            folder for timm.create_model("local-dir:...")) or hub (the same with a model card).
        encoder: a file or name that `cl.load` takes.
        to: the file or folder to write; None: exports/<format>.
        prefix: which encoder to use if the file contains several.
        license: for hub, the license by its name on the hub; None: the one that the file records.
        card: for hub, a file of Markdown to append to the model card, such as report/tables.md.
        resize, crop: as in `embed`, to record with an encoder whose file records no transform.

    Raises:
        ValueError: the encoder is missing or damaged, the format does not support it, the export would
            overwrite it, an argument does not fit the format, or images of this size do not fit the network.
    """
    weights = encoder, Path(encoder) / formats.WEIGHTS
    path = Path(to or Path("exports") / f"{format}{FILES.get(format, '')}")
    if format in FILES:
        path = target_of(path, *weights, suffixes=(FILES[format],)) or path
    else:
        path = through_link(path.expanduser())
        checked(path / formats.WEIGHTS, *weights)
    for name, value in (("license", license), ("card", card)):
        if value and format != "hub":
            raise ValueError(f"--{name} {value} is only for hub, not for {format}; leave it out")
    if card and not Path(card).is_file():
        raise ValueError(f"no file --card {card}; give Markdown such as report/tables.md")
    loaded = foreign.load(fspath(encoder), prefix)
    formats.check_network(loaded.network, format)
    if loaded.deviation and format != "onnx":
        raise ValueError(
            f"{encoder} is a {loaded.config.title} {loaded.deviation}, which {format} cannot express; "
            "choose onnx"
        )
    is_recorded = "transform" in loaded.metadata
    transform = transform_in(loaded.metadata, fspath(encoder))
    transform = with_size(transform, resize, crop, is_recorded=is_recorded)
    has_size = is_recorded or resize is not None
    metadata = {"network": loaded.config.model_dump_json()}
    if has_size:
        metadata["transform"] = transform.model_dump_json()
    exported = Exported(path, loaded.config.title, loaded.network.fc_features, _inputs(transform, has_size))
    description = None
    if format in FOLDERS:
        try:
            description = formats.describe(loaded.config, exported.width, transform)
        except ValueError:  # timm lacks this network
            if format == "timm":
                raise
    if format in ("onnx", *FOLDERS):  # the others take ResNets only, which take any size
        check_size(fspath(encoder), loaded.network, transform.crop, "--crop")
    if format in ("torchvision", "hub") and not (has_size or description) and transform != IMAGENET:
        raise ValueError(
            f"{encoder} has a normalisation of its own, which {format} can record only together with the "
            "size of images; give --resize and --crop"
        )
    if format in FILES:
        formats.write(loaded.network, format, path, transform.crop, metadata)
        return exported
    if description and not has_size and "normalisation" not in loaded.metadata:
        for key in ("mean", "std"):  # timm's own defaults are the same
            del description["pretrained_cfg"][key]
    text = ""
    if format == "hub":
        about = f"{exported.network}.\n\nImages: {exported.inputs}"
        name, library = path.name, "timm" if description else "cl"
        recorded = licence(loaded.metadata)
        license = license or (recorded if LICENSE.fullmatch(recorded) else "other")
        text = formats.model_card(name, about, library, license, transform.crop, loaded.metadata)
        text += Path(card).read_text(encoding="utf-8") if card else ""
    formats.write_folder(loaded.network, path, description, text, loaded.metadata | metadata)
    return exported


def _inputs(transform: Transform, has_size: bool) -> str:
    mean, std = ([round(value, 4) for value in values] for values in (transform.mean, transform.std))
    return (
        f"RGB in [0, 1], resized to {transform.resize} px and cropped to {transform.crop} px, mean {mean}, "
        f"std {std}{'' if has_size else ' (defaults: no file records the size)'}"
    )
