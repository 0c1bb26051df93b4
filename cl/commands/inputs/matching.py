"""Features and the encoder that gave them: only features of one encoder are compared."""

from collections import Counter
from collections.abc import Callable, Mapping
from os import fspath
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cl.commands.defaults import ENCODER
from cl.commands.inputs import feature_files
from cl.commands.inputs.feature_files import Features
from cl.commands.inputs.paths import File
from cl.data.transform import Transform
from cl.encoders.encoder import IMAGENET, Encoder, opened
from cl.encoders.published import is_name

ROWS = 2**14  # checked at a time
SMALLEST, LARGEST = 1e-12, 1e16  # of the largest number in a row: cosines are computed in float32


def read(path: Path) -> Features:
    """As `feature_files.read`, finite, and one vector for each of at least one image.

    Raises:
        ValueError: there are no images, two rows of one image, several vectors per image, features that are
            not finite, or a damaged transform.
    """
    features = feature_files.read(path)
    if not features.features.size:
        raise ValueError(f"{path} contains no features; write it again with `cl embed`")
    name, rows = Counter(features.names).most_common(1)[0]
    if rows > 1:
        raise ValueError(f"{path} has {rows} rows of {name}; keep one for each image")
    try:
        transform_of(features)
    except ValueError as error:
        raise ValueError(f"{path} has a damaged transform; write it again with `cl embed`") from error
    for start in range(0, len(features.names), ROWS):
        largest = np.abs(features.features[start : start + ROWS]).max(1)
        usable = (largest == 0) | ((largest > SMALLEST) & (largest < LARGEST))  # NaN is not
        if not usable.all():
            name, value = features.names[start + int(usable.argmin())], largest[usable.argmin()]
            raise ValueError(
                f"the features of {name} in {path} reach {value:g}, expected finite numbers whose squares "
                "float32 can hold; embed the images again"
            )
    return features


def origin_of(encoder: File | Encoder, prefix: str | None) -> dict[str, str]:
    """Where an encoder was found, to record with its features; {} if it was loaded already."""
    if isinstance(encoder, Encoder):
        return {}
    name = fspath(encoder)
    place = {"encoder": name if is_name(name) else str(Path(name).absolute())}
    return place | {"prefix": prefix} if prefix else place


def recorded(
    notes: dict[str, str], encoder: File | Encoder, prefix: str | None
) -> tuple[File | Encoder, str | None]:
    """The encoder and prefix to use: the recorded ones, unless the user named others or the file is gone."""
    place = notes.get("encoder", "")
    if encoder == ENCODER and place and (is_name(place) or Path(place).exists()):
        return place, prefix or notes.get("prefix")
    return encoder, prefix


def encoder_of(
    features: Features,
    path: Path,
    encoder: File | Encoder,
    prefix: str | None,
    say: Callable[[str], None],
) -> Encoder:
    """The encoder that gave the features; if its file records no transform, with theirs.

    It is the one that they record unless another is named. A file of features without notes shows only its
    width, which `say` is told.

    Args:
        path: the file of the features, for messages.
        encoder: a file or name that `cl.load` takes, or what it returned.

    Raises:
        ValueError: the features came from another encoder, or with another transform; or neither they nor the
            encoder record the size of images.
    """
    encoder, prefix = recorded(features.notes, encoder, prefix)
    given, notes, width = opened(encoder, prefix), features.notes, features.features.shape[1]
    name = "the encoder" if isinstance(encoder, Encoder) else fspath(encoder)
    advice = "name the right one with --encoder, or embed the images again"
    if given.width != width:
        raise ValueError(f"{path} has {width} features per image, but {name} gives {given.width}; {advice}")
    if "sha256" not in notes:
        say(f"{path} does not record its encoder, so only the number of features per image is compared")
    if not given.records_size and "transform" not in notes:
        raise ValueError(
            f"neither {path} nor {name} records the size of images; embed them again to .parquet"
        )
    if not given.records_size and given is not encoder:
        given.transform = transform_of(features)
    if different := difference(notes, notes_of(given)):
        raise ValueError(f"{path} came from {different} than {name}; {advice}")
    return given


def notes_of(encoder: Encoder) -> dict[str, str]:
    """What identifies the encoder and the transform of features."""
    return {"sha256": encoder.sha256, "transform": encoder.transform.model_dump_json()}


def difference(first: Mapping[str, str], other: Mapping[str, str]) -> str:
    """How the notes of some features differ from others, in words; "" if they agree in what both record."""
    if "sha256" in first and first["sha256"] != other.get("sha256", first["sha256"]):
        return f"another encoder (sha256 {first['sha256'][:12]}, not {other['sha256'][:12]})"
    if not {"transform"} <= first.keys() & other.keys():
        return ""
    transforms = [Transform.model_validate_json(each["transform"]) for each in (first, other)]
    pairs = {x: [getattr(each, x) for each in transforms] for x in Transform.model_fields if x != "show"}
    settings = ", ".join(f"{x} {one}, not {two}" for x, (one, two) in pairs.items() if one != two)
    return settings and f"another transform ({settings})"


def transform_of(features: Features) -> Transform:
    """The recorded transform, or ImageNet's."""
    recorded = features.notes.get("transform")
    return Transform.model_validate_json(recorded) if recorded else IMAGENET


def check_same_encoder(
    first: Features, second: Features, paths: tuple[Path, Path], say: Callable[[str], None]
) -> None:
    """Raises ValueError if two files have features of different encoders or transforms.

    Of two files, one without notes shows only its width, which `say` is told.
    """
    one, two = first.features.shape[1], second.features.shape[1]
    widths = "" if one == two else f"another encoder ({one} features per image, not {two})"
    if different := widths or difference(first.notes, second.notes):
        raise ValueError(
            f"{paths[0]} came from {different} than {paths[1]}; embed the images of both with one encoder"
        )
    if paths[0] != paths[1] and not ("sha256" in first.notes and "sha256" in second.notes):
        say(f"{paths[0]} and {paths[1]} do not both record their encoder; make sure that it is the same")


def is_features(path: Path) -> bool:
    """Whether a file holds features by the names of its columns; a table of images does not."""
    if path.suffix == ".parquet":
        try:
            return "features" in pq.read_schema(path).names
        except pa.ArrowException:
            return False  # nor a table of images, as reading it will say
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return {"name", "0"} <= {*file.readline().replace('"', "").strip().split(",")}
    return path.suffix == ".npy"
