"""export: write an encoder in the format of another program."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import fspath
from pathlib import Path

from cl.commands.defaults import ENCODER, FILES, TIMM
from cl.commands.paths import File, checked, target_of, through_link
from cl.data.transform import Transform
from cl.encoders import foreign, formats
from cl.encoders.encoder import IMAGENET, with_transform
from cl.encoders.published import file_and_prefix
from cl.networks.backbones import check_size
from cl.runtime.tensor_files import UNKNOWN


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
    resize: int | None = None,
    crop: int | None = None,
) -> Exported:
    """Write an encoder, without a classifier, in the format of another program.

    Args:
        format: torchvision (safetensors), detectron2 (.pkl), onnx (for images of the encoder's crop), or timm
            (a folder for timm.create_model("local-dir:...")).
        encoder: a file or name that `cl.load` takes.
        to: the file or folder to write; None: exports/<format>.
        prefix: which encoder to use if the file contains several.
        resize, crop: as in `embed`, to record with an encoder whose file records no transform.

    Raises:
        ValueError: the encoder is missing or damaged, the format does not support it, the export would
            overwrite it, or images of this size do not fit the network.
    """
    file = file_and_prefix(fspath(encoder), prefix)[0]
    weights = file, file / formats.WEIGHTS
    path = Path(to or Path("exports") / f"{format}{FILES.get(format, '')}")
    if format in FILES:
        path = target_of(path, *weights, suffixes=(FILES[format],)) or path
    else:
        path = through_link(path.expanduser())
        checked(path / formats.WEIGHTS, *weights)
    found = foreign.load(fspath(encoder), prefix)
    formats.check_network(found.config, format)
    if found.deviation and format != "onnx":
        raise ValueError(
            f"{encoder} is a {found.config.title} {found.deviation}, which {format} cannot express; "
            "choose onnx"
        )
    loaded = with_transform(found, fspath(encoder))
    loaded.set_size(resize, crop)
    transform, has_size = loaded.transform, loaded.records_size
    metadata = {"network": found.config.model_dump_json()}
    if loaded.licence != UNKNOWN:
        metadata["license"] = loaded.licence
    if has_size:
        metadata["transform"] = transform.model_dump_json()
    if format in ("onnx", TIMM):  # the others take ResNets only, which take any size
        check_size(fspath(encoder), loaded.network, transform.crop, "--crop", transform.channels)
    if format == "torchvision" and not has_size and transform != IMAGENET:
        raise ValueError(
            f"{encoder} has a normalisation of its own, which {format} can record only together with the "
            "size of images; give --resize and --crop"
        )
    if format in FILES:
        formats.write(loaded.network, format, path, transform.crop, metadata)
    else:
        description = formats.describe(found.config, loaded.width, transform)
        if not has_size and "normalisation" not in found.metadata:
            for key in ("mean", "std"):  # timm's own defaults are the same
                del description["pretrained_cfg"][key]
        formats.write_folder(loaded.network, path, description, found.metadata | metadata)
    return Exported(path, found.config.title, loaded.width, _inputs(transform, has_size))


def _inputs(transform: Transform, has_size: bool) -> str:
    if bands := transform.bands:
        return (
            f"(N, {transform.channels}, {transform.crop}, {transform.crop}) float32: the bands "
            f"{', '.join(bands.names)}, each minus its mean {_rounded(bands.mean)} over its deviation "
            f"{_rounded(bands.deviation)}, 0 without data; then resized to {transform.resize} px and cropped"
        )
    mean, std = ([round(value, 4) for value in values] for values in (transform.mean, transform.std))
    return (
        f"RGB in [0, 1], resized to {transform.resize} px and cropped to {transform.crop} px, mean {mean}, "
        f"std {std}{'' if has_size else ' (defaults: no file records the size)'}"
    )


def _rounded(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:.6g}' for value in values)}]"
