"""Tables and features in files, and damage to files."""

import csv
from contextlib import closing
from pathlib import Path

import numpy as np

from cl.commands.inputs import feature_files


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows, by the names of the columns."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_features(path: Path, features: np.ndarray, notes: dict[str, str] | None = None) -> Path:
    """A file of the features of images called 0.jpg, 1.jpg, ..."""
    with closing(feature_files.FORMATS[path.suffix](path, features.shape[1:], notes or {})) as file:
        file.append([f"{number}.jpg" for number in range(len(features))], features.astype("f4"))
    return path


def flip_bit(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """With a bit, byte or number changed, or bytes left out or added, anywhere or at one of the ends."""
    place = int(rng.choice([rng.integers(len(content)), min(rng.integers(200), len(content) - 1)]))
    place = place if rng.random() < 0.7 else len(content) - 1 - place % 100
    changed = [
        bytes([content[place] ^ 1 << int(rng.integers(8))]) + content[place + 1 :],
        rng.bytes(1) + content[place + 1 :],
        np.float32(rng.choice([np.nan, np.inf, 1e30])).tobytes() + content[place + 4 :],
        b"nan" + content[place + 3 :],
        content[place + int(rng.integers(1, 20)) :],
        rng.bytes(3) + content[place:],
    ]
    return content[:place] + changed[int(rng.integers(len(changed)))]
