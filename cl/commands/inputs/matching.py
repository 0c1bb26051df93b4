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
from cl.commands.paths import File
from cl.data.transform import Transform
from cl.encoders.encoder import IMAGENET, Encoder, opened
from cl.encoders.published import file_and_prefix, is_name

ROWS = 2**14  # checked at a time
SMALLEST, LARGEST = 1e-12, 1e16  # of the largest number in a row: cosines are computed in float32


def read(path: Path) -> Features:
    """As `feature_files.read`, and raises ValueError also unless each of some images has one finite row."""
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
    name, prefix = file_and_prefix(fspath(encoder), prefix)
    place = {"encoder": str(name if is_name(str(name)) else name.absolute())}
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

    It is the one that they record unless another is named; `path` is their file.

    Raises:
        ValueError: as `check_same_encoder`; or neither they nor the encoder record the size of images.
    """
    encoder, prefix = recorded(features.notes, encoder, prefix)
    given, notes = opened(encoder, prefix), features.notes
    name = "the encoder" if isinstance(encoder, Encoder) else fspath(encoder)
    if not given.records_size and given is not encoder:
        given.transform = transform_of(features)
    remedy = "name the right one with --encoder, or embed the images again"
    widths = features.features.shape[1], given.width
    check_same_encoder((path, name), (notes, notes_of(given)), widths, remedy, say)
    if not given.records_size and "transform" not in notes:
        raise ValueError(
            f"neither {path} nor {name} records the size of images; embed them again to .parquet"
        )
    return given


def notes_of(encoder: Encoder) -> dict[str, str]:
    """What identifies the encoder and the transform of features."""
    return {"sha256": encoder.sha256, "transform": encoder.transform.model_dump_json()}


def difference(first: Mapping[str, str], other: Mapping[str, str], widths: tuple[int, int]) -> str:
    """How some features differ from others, in words; "" if their widths and what both record agree."""
    if widths[0] != widths[1]:
        return f"another encoder ({widths[0]} features per image, not {widths[1]})"
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
    names: tuple[object, object],
    notes: tuple[Mapping[str, str], Mapping[str, str]],
    widths: tuple[int, int],
    remedy: str,
    say: Callable[[str], None],
) -> None:
    """Raises ValueError if two sources of features have different encoders or transforms.

    Without notes, only the widths of two sources can be compared, which `say` is told.
    """
    if different := difference(*notes, widths):
        raise ValueError(f"{names[0]} came from {different} than {names[1]}; {remedy}")
    if names[0] != names[1] and not all("sha256" in each for each in notes):
        say(f"{names[0]} and {names[1]} do not both record their encoder; make sure that it is the same")


def check_same_features(
    first: Features, other: Features, paths: tuple[Path, Path], say: Callable[[str], None]
) -> None:
    """As `check_same_encoder`, for two files."""
    widths = first.features.shape[1], other.features.shape[1]
    remedy = "embed the images of both with one encoder"
    check_same_encoder(paths, (first.notes, other.notes), widths, remedy, say)


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
    return path.suffix == ".npy" and path.with_suffix(".txt").exists()  # otherwise an image of bands
