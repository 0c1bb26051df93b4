"""Features and the encoder that gave them: only features of one encoder are compared."""

from collections import Counter
from collections.abc import Callable
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
        raise ValueError(f"{path} has features of no image; write another file with `cl embed`")
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
    name, width = "the encoder", features.features.shape[1]
    if not isinstance(encoder, Encoder):
        name = fspath(encoder)
    given = opened(encoder, prefix)
    notes, advice = features.notes, "name the right one with --encoder, or embed the images again"
    if given.width != width:
        raise ValueError(f"{path} has {width} features per image, but {name} gives {given.width}; {advice}")
    if "sha256" not in notes:
        say(f"{path} does not record its encoder, so only the number of features per image is compared")
    elif notes["sha256"] != (sha256 := given.sha256):
        hashes = f"(sha256 {notes['sha256'][:12]}), not from {name} (sha256 {sha256[:12]})"
        raise ValueError(f"{path} came from another encoder {hashes}; {advice}")
    if "transform" in notes:
        transform = transform_of(features)
        if not given.records_size and given is not encoder:
            given.transform = transform
        elif transform != given.transform:
            first, other = transform.model_dump(), given.transform.model_dump()
            differences = ", ".join(f"{x}: {first[x]} and {other[x]}" for x in first if first[x] != other[x])
            raise ValueError(
                f"{path} came from images with another transform than that of {name} ({differences}); "
                f"{advice}"
            )
    elif not given.records_size:
        raise ValueError(
            f"neither {path} nor {name} records the size of images; embed them again to .parquet"
        )
    return given


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
    pairs = [(first.features.shape[1], second.features.shape[1])]
    pairs += [
        (first.notes[x], second.notes[x])
        for x in ("sha256", "transform")
        if x in first.notes and x in second.notes
    ]
    for one, other in pairs:
        if one != other:
            raise ValueError(
                f"{paths[0]} and {paths[1]} came from different encoders or transforms ({one} and {other}); "
                "embed the images of both with one encoder"
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
