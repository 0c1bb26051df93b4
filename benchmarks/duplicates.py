"""Planted copies: precision and recall of `cl duplicates`, of its two criteria, and of a perceptual hash.

`python -W ignore -m benchmarks.duplicates ENCODER [FOLDER ...]` takes the images below each folder, or tiles
of the twenty photographs, and plants a copy of each. It needs `pip install imagehash`.
"""

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image as Picture

import cl
from cl.commands.jobs import near_duplicates
from cl.console.progress import silent
from cl.features import copies
from cl.features.knn import unit_blocks
from cl.images import photographs

TILES, SIDE = 4, 128  # tiles along the longer side of a photograph at most, and their least side in pixels
HASH = 10  # bits of 64: the usual largest distance of a perceptual hash
Plant = Callable[[Picture.Image, np.random.Generator], Picture.Image]


def main() -> None:
    file, *folders = sys.argv[1:]
    encoder = cl.load(file)
    with tempfile.TemporaryDirectory() as name:
        sources = {folder: images_below(Path(folder)) for folder in folders} or {"tiles": tiles()}
        for source, pictures in sources.items():
            compare(source, pictures, encoder, Path(name) / Path(source).name)


def images_below(folder: Path) -> list[Picture.Image]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    return [Picture.open(path).convert("RGB") for path in paths]


def tiles() -> list[Picture.Image]:
    """Square tiles of the photographs, without overlap."""
    found = []
    for path in photographs.files().values():
        picture = Picture.open(path).convert("RGB")
        side = max(SIDE, max(picture.size) // TILES)
        for top in range(0, picture.height - side + 1, side):
            for left in range(0, picture.width - side + 1, side):
                found.append(picture.crop((left, top, left + side, top + side)))
    return found


def compressed(picture: Picture.Image, quality: int) -> Picture.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Picture.open(file).convert("RGB")


def scaled(picture: Picture.Image, scale: float) -> Picture.Image:
    size = [max(1, round(scale * side)) for side in picture.size]
    return picture.resize(size, Picture.Resampling.LANCZOS)


def window(picture: Picture.Image, share: float, rng: np.random.Generator) -> Picture.Image:
    size = [round(share * side) for side in picture.size]
    left, top = (int(rng.integers(side - part + 1)) for side, part in zip(picture.size, size, strict=True))
    return picture.crop((left, top, left + size[0], top + size[1]))


def brighter(picture: Picture.Image, factor: float) -> Picture.Image:
    return picture.point(lambda value: min(255, round(factor * value)))


def everything(picture: Picture.Image, rng: np.random.Generator) -> Picture.Image:
    mirrored = window(picture, 0.92, rng).transpose(Picture.Transpose.FLIP_LEFT_RIGHT)
    return compressed(brighter(scaled(mirrored, 0.7), 1.15), 60)


KINDS: dict[str, Plant] = {  # with other amounts than in `cl.features.copies`
    "resized": lambda picture, rng: scaled(picture, rng.uniform(0.4, 0.75)),
    "recompressed": lambda picture, rng: compressed(picture, int(rng.integers(25, 80))),
    "cropped": lambda picture, rng: window(picture, rng.uniform(0.85, 0.97), rng),
    "flipped": lambda picture, rng: picture.transpose(Picture.Transpose.FLIP_LEFT_RIGHT),
    "brightness": lambda picture, rng: brighter(picture, rng.choice([0.6, 0.8, 1.25, 1.5])),
    "all five": everything,
}


def compare(
    source: str, pictures: list[Picture.Image], encoder: "cl.encoders.encoder.Encoder", folder: Path
) -> None:
    """Plant a copy of each image, of a kind in turn, and print a table of precision and recall."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    kinds = list(KINDS)
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number:05d}.png")
        copy = KINDS[kinds[number % len(kinds)]](picture, rng)
        copy.save(folder / f"{number:05d}-copy.jpg", quality=90)
    features = cl.embed(folder, encoder=encoder)
    assert features
    paths = [folder / name for name in features.names]
    calibration, found = near_duplicates.find(features.features, paths, encoder, silent)
    both = found.positions
    every = np.stack(np.triu_indices(len(paths), 1), axis=1)
    ((_, unit),) = unit_blocks(features.features, len(paths))
    cosines = (unit @ unit.T).numpy()[tuple(every.T)]
    small = np.stack([copies.small(Picture.open(path).convert("RGB")) for path in paths])
    agreements = copies.agreement(small, every)
    distances = hash_distances(paths)[tuple(every.T)]
    number = np.array([int(path.stem[:5]) for path in paths])
    truth = number[every[:, 0]] == number[every[:, 1]]
    print(
        f"\n{source}: {len(pictures)} images and a copy of each; cosine {calibration.cosine:.3f}, "
        f"agreement {calibration.agreement:.3f}; recall that it expects: "
        + ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in calibration.recall.items())
    )
    print(f"{'':34}{'precision':>10}{'recall':>8}" + "".join(f"{kind:>14}" for kind in kinds))
    methods = {
        "cl duplicates": np.isin(every @ (len(paths), 1), both @ (len(paths), 1)),
        "by the cosine alone": cosines >= calibration.cosine,
        "by the pixels alone": agreements >= calibration.agreement,
        f"phash, at most {HASH} bits": distances <= HASH,
        "phash, 0 bits": distances == 0,
    }
    values = {"cosine": cosines, "pixels": agreements, "phash": -distances.astype(float)}
    for name, value in values.items():
        methods[f"{name}, best threshold known"] = value >= best_threshold(value, truth)
    for name, found in methods.items():
        right = (found & truth).sum()
        by_kind = [
            found[truth & (number[every[:, 0]] % len(kinds) == kind)].mean() for kind in range(len(kinds))
        ]
        shares = "".join(f"{100 * share:13.1f} " for share in by_kind)
        print(
            f"{name:34}{100 * right / max(1, found.sum()):10.1f}{100 * right / truth.sum():8.1f}{shares}",
            flush=True,
        )


def hash_distances(paths: list[Path]) -> np.ndarray:
    """(n, n): differing bits of the images' perceptual hashes."""
    import imagehash

    bits = np.stack([imagehash.phash(Picture.open(path)).hash.ravel() for path in paths]).astype(np.int32)
    return bits @ (1 - bits.T) + (1 - bits) @ bits.T


def best_threshold(values: np.ndarray, truth: np.ndarray) -> float:
    """The threshold with the largest F1."""
    order = np.argsort(-values)
    right = np.cumsum(truth[order])
    last = np.append(np.diff(values[order]) != 0, True)  # equal values are accepted together
    f1 = np.where(last, 2 * right / (np.arange(1, len(order) + 1) + truth.sum()), 0)
    return float(values[order][f1.argmax()])


if __name__ == "__main__":
    main()
