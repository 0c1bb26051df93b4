"""How often `cl compare` calls equal encoders different, and which differences it finds.

`python -m benchmarks.compare FOLDER`, with features by two encoders in files of `cl embed`: NAME-train-a.npy,
NAME-val-a.npy, NAME-train-b.npy and NAME-val-b.npy, of images in folders of classes. The verdict of every
simulated comparison is that of the command.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from cl.commands.inputs import feature_files
from cl.features.correctness import correctness
from cl.statistics import PairedComparison, judge

TIMES = 1000  # comparisons in a row of a table
SIZES = 110, 300, 2000
IMAGES = 300  # where one size is enough
ALIKE = 0.7  # share of a group's images with the same outcome
FEW = 4, 8, 16, 32  # images that differ
POINTS = 0.5, 1.0, 2.0, 3.0, 4.0, 6.0

Scores = dict[str, np.ndarray]  # percentages (M, 2) of each measure
Set = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # training features, labels; validation


def main() -> None:
    folder = Path(sys.argv[1])
    names = sorted(path.name.removesuffix("-train-a.npy") for path in folder.glob("*-train-a.npy"))
    sets = {name: (read(folder, name, "a"), read(folder, name, "b")) for name in names}
    pools = {}
    for name, (a, b) in sets.items():
        began = time.perf_counter()
        pools[name] = correctness((a[0], b[0]), a[1], (a[2], b[2]), a[3])
        found = judge(pools[name])
        print(f"{name}: {time.perf_counter() - began:.1f} s, {found.sentence()}", flush=True)
    equal(pools)
    few(pools)
    grouped(pools)
    power(pools)


def read(folder: Path, name: str, encoder: str) -> Set:
    found = []
    for split in ("train", "val"):
        features = feature_files.read(folder / f"{name}-{split}-{encoder}.npy")
        found += [np.array(features.features), np.array([Path(each).parts[0] for each in features.names])]
    return found[0], found[1], found[2], found[3]


def equal(pools: dict[str, Scores]) -> None:
    """Real encoders made equal: by swapped outcomes, and by weights that make the true difference 0."""
    table("equal encoders", "images", "called different", "by kNN alone")
    for size in SIZES:
        for title, sample in (("outcomes swapped", swapped), ("images from a pool", tilted)):
            rates = [
                rate(judge(sample(pool, size, rng)) for pool, rng in in_turn(pools, measure))
                for measure in (None, 0)
            ]
            row(title, size, *rates)


def few(pools: dict[str, Scores]) -> None:
    """Outcomes swapped among a few images; the others are classified in the same way by both."""
    table("images that differ, of 300", "called different", "by kNN alone")
    for number in FEW:
        rates = [
            rate(judge(swapped(pool, IMAGES, rng, number)) for pool, rng in in_turn(pools, measure))
            for measure in (None, 0)
        ]
        row(number, *rates)


def grouped(pools: dict[str, Scores]) -> None:
    """Images of a group often have the same outcome; groups of equal and of unequal size."""
    table("groups of 300 images", "called different", "if their groups are ignored")
    for number in (8, 30, 100):
        for title, spread in (("equal", 0.0), ("unequal", 1.0)):
            found = [clustered(pool, number, spread, rng) for pool, rng in in_turn(pools)]
            known, ignored = rate(judge(*each) for each in found), rate(judge(each) for each, _ in found)
            row(f"{number} {title}", known, ignored)


def power(pools: dict[str, Scores]) -> None:
    """Images from a pool with weights that make the true difference what the first column says."""
    table(f"true difference, {IMAGES} images", "found", "wrong direction", "interval contains it")
    for points in POINTS:
        found = [judge(tilted(pool, IMAGES, rng, points)) for pool, rng in in_turn(pools)]
        inside = np.mean([each.overall.low <= points <= each.overall.high for each in found])
        verdicts = [each.verdict for each in found]
        row(
            points,
            *(100 * np.mean([each == v for each in verdicts]) for v in ("better", "worse")),
            100 * inside,
        )
    table("pool", "difference that would be seen", "found")
    for name, pool in pools.items():
        rngs = [np.random.default_rng(seed) for seed in range(TIMES // 4)]
        seen = float(np.median([judge(tilted(pool, IMAGES, rng)).detectable for rng in rngs[:20]]))
        row(name, f"{seen:.1f}", rate(judge(tilted(pool, IMAGES, rng, seen)) for rng in rngs))


def in_turn(
    pools: dict[str, Scores], measure: int | None = None
) -> Iterator[tuple[Scores, np.random.Generator]]:
    """The pools in turn, with one measure only if given, and a generator of random numbers for each."""
    for seed, pool in numbered(list(pools.values())):
        chosen = pool if measure is None else dict([list(pool.items())[measure]])
        yield chosen, np.random.default_rng(seed)


def numbered(things: list[Any]) -> Iterator[tuple[int, Any]]:
    return enumerate(islice(cycle(things), TIMES))


def swapped(pool: Scores, size: int, rng: np.random.Generator, differing: int | None = None) -> Scores:
    """Images of the pool, with A and B exchanged at random; all but `differing` are made equal."""
    mean = overall(pool)
    others = np.flatnonzero(mean != 0) if differing else np.arange(len(mean))
    chosen = rng.choice(others, differing or size)
    swap = rng.random(len(chosen)) < 0.5
    found = {}
    for measure, scores in pool.items():
        rows = np.where(swap[:, None], scores[chosen, ::-1], scores[chosen])
        equal = np.repeat(scores[rng.choice(len(scores), size - len(chosen)), :1], 2, axis=1)
        found[measure] = np.concatenate([rows, equal])
    return found


def tilted(pool: Scores, size: int, rng: np.random.Generator, points: float = 0) -> Scores:
    """Images drawn with weights exp(l d) for a difference d, such that its expectation is `points`."""
    chosen = rng.choice(len(overall(pool)), size, p=weights(overall(pool), points))
    return {measure: scores[chosen] for measure, scores in pool.items()}


def clustered(
    pool: Scores, groups: int, spread: float, rng: np.random.Generator
) -> tuple[Scores, np.ndarray]:
    """IMAGES images of groups with log-normal sizes, without a true difference."""
    sizes = np.exp(spread * rng.normal(size=groups))
    group = np.sort(
        np.concatenate([np.arange(groups), rng.choice(groups, IMAGES - groups, p=sizes / sizes.sum())])
    )
    p = weights(overall(pool), 0)
    shared, own = rng.choice(len(p), groups, p=p)[group], rng.choice(len(p), IMAGES, p=p)
    chosen = np.where(rng.random(IMAGES) < ALIKE, shared, own)
    return {measure: scores[chosen] for measure, scores in pool.items()}, group


def overall(pool: Scores) -> np.ndarray:
    """(M,): B - A in points, the mean of the measures."""
    differences: np.ndarray = np.mean([scores[:, 1] - scores[:, 0] for scores in pool.values()], axis=0)
    return differences


def weights(differences: np.ndarray, points: float) -> np.ndarray:
    """Probabilities exp(l d) of images, such that the expected difference is `points`."""

    def tilt(slope: float) -> np.ndarray:
        logits = slope * differences
        p: np.ndarray = np.exp(logits - logits.max())
        return p / p.sum()

    return tilt(brentq(lambda slope: tilt(slope) @ differences - points, -1, 1))


def rate(found: Iterable[PairedComparison]) -> float:
    """The percentage of comparisons that call the encoders different."""
    return 100 * float(np.mean([each.verdict != "cannot tell" for each in found]))


def table(*heads: str) -> None:
    print("\n| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", sep="\n")


def row(*cells: Any) -> None:
    print(
        "| " + " | ".join(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |",
        flush=True,
    )


if __name__ == "__main__":
    main()
