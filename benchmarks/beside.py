"""`cl embed` and `cl duplicates` beside lightly-train's `embed`, imagededup and FiftyOne Brain.

`python -m benchmarks.beside ENCODER FOLDER LIGHTLY IMAGEDEDUP FIFTYONE`: timm's name of a network and its
file as NAME=FILE, a folder of images, and the Pythons of three environments, each with one of the programs,
timm and one version of torch. Programs take turns. Their rates compare CPU seconds, which other work on the
machine changes less than the time on the clock.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
from PIL import Image as Picture
from safetensors.torch import save_file

from benchmarks.beside_cases import BATCH
from benchmarks.duplicates import Plant, brighter, compressed, scaled, window
from cl.hub import feature_files

CASES = Path(__file__).with_name("beside_cases.py")
TURNS = 2
EMBEDDED = 300  # images to measure the rate with
FEW = 20  # images beside an unreadable one
MANY, SMALL = 10_000, 32  # images of an interrupted run, and their side in pixels
LEAST = 0.8  # cosine of FiftyOne's default threshold, a distance of 0.2
Pairs = set[tuple[str, str]]

KINDS: dict[str, Plant] = {
    "resized to 50 %": lambda picture, rng: scaled(picture, 0.5),
    "JPEG quality 40": lambda picture, rng: compressed(picture, 40),
    "flipped": lambda picture, rng: picture.transpose(Picture.Transpose.FLIP_LEFT_RIGHT),
    "cropped by 10 %": lambda picture, rng: window(picture, 0.9, rng),
    "brightness 1.3": lambda picture, rng: brighter(picture, 1.3),
}


class Run(NamedTuple):
    """Seconds on the clock and of the CPU, the exit code, and the last lines printed."""

    seconds: float
    cpu: float
    code: int
    said: str


class Programs(NamedTuple):
    """The Pythons of the environments, the encoder as NAME=FILE, and a folder for temporary files."""

    encoder: str
    lightly: str
    imagededup: str
    fiftyone: str
    work: Path

    def embed(self, network: str, side: int) -> dict[str, Callable[[Path, Path], list[str]]]:
        """For each program, the command that writes the features of a folder's images."""
        file = network.split("=")[1]
        size = [] if side == 224 else ["--resize", str(side * 8 // 7), "--crop", str(side)]
        checkpoint = self.work / f"{network.split('=')[0]}.ckpt"
        if not checkpoint.exists():
            subprocess.run([self.lightly, CASES, "lightly_checkpoint", network, checkpoint], check=True)
        lightly = [
            str(Path(self.lightly).with_name("lightly-train")),
            *("embed", f"checkpoint={checkpoint}", f"batch_size={BATCH}", f"image_size={side}"),
        ]
        return {
            "cl embed": lambda folder, to: [
                *(sys.executable, "-m", "cl", "embed", str(folder), "--encoder", file),
                *(*size, "--to", f"{to}.parquet"),
            ],
            "lightly-train embed": lambda folder, to: [*lightly, f"data={folder}", f"out={to}.pt"],
            "imagededup": lambda folder, to: [
                *(self.imagededup, str(CASES), "imagededup_embed", network),
                *(str(folder), f"{to}.pt", str(side)),
            ],
        }

    def case(self, python: str, name: str, *arguments: object) -> list[str]:
        return [python, str(CASES), name, self.encoder, *map(str, arguments)]


def main() -> None:
    encoder, images, *pythons = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        programs = Programs(encoder, *pythons, work)
        originals = sorted(
            path for path in Path(images).rglob("*") if path.suffix.lower() in (".jpg", ".png")
        )
        folder = work / "images"
        plant(originals, folder)
        resnet = untrained(work)
        embedding(programs, resnet, folder)
        duplicates(programs, folder)
        unreadable(programs, resnet, originals)
        interruption(programs, resnet, originals)


def plant(originals: list[Path], folder: Path) -> None:
    """Copy the images, and beside each one changed copy, of a kind in turn."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number, path in enumerate(originals):
        (folder / f"{number:05d}{path.suffix}").write_bytes(path.read_bytes())
        change = list(KINDS.values())[number % len(KINDS)]
        change(Picture.open(path).convert("RGB"), rng).save(folder / f"{number:05d}-copy.png")


def untrained(work: Path) -> str:
    """A ResNet-18: lightly-train would leave out the last convolution of an EfficientNet."""
    torch.manual_seed(0)
    file = work / "resnet18.safetensors"
    save_file(timm.create_model("resnet18", num_classes=0).state_dict(), file)
    return f"resnet18={file}"


def run(command: list[str], kill_after: float | None = None) -> Run:
    environment = {**os.environ, "LIGHTLY_TRAIN_EVENTS_DISABLED": "1"}
    with tempfile.TemporaryFile("w+") as said:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)
        timer = threading.Timer(kill_after or 1e6, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        seconds, code = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        process.returncode = code
        said.seek(0)
        lines = [line.strip() for line in said.read().replace("\r", "\n").splitlines() if line.strip()]
    return Run(seconds, usage.ru_utime + usage.ru_stime, code, " / ".join(lines[-2:])[-240:] if lines else "")


def embedding(programs: Programs, network: str, folder: Path) -> None:
    """Images per second without the start of the program, which a run with one image measures."""
    paths = sorted(folder.iterdir())
    one, some = (programs.work / name for name in ("one", "some"))
    for part, chosen in ((one, paths[:1]), (some, paths[:EMBEDDED])):
        part.mkdir()
        for path in chosen:
            os.link(path, part / path.name)
    count, commands = len(paths[:EMBEDDED]), programs.embed(network, 224)
    starts: dict[str, list[Run]] = {name: [] for name in commands}
    wholes: dict[str, list[Run]] = {name: [] for name in commands}
    for turn in range(TURNS):
        for name in list(commands)[:: 1 - 2 * (turn % 2)]:
            for images, runs in ((one, starts), (some, wholes)):
                to = programs.work / f"{name}-{images.name}-{turn}".replace(" ", "-")
                runs[name].append(checked(run(commands[name](images, to))))
                print(name, turn, runs[name][-1], file=sys.stderr, flush=True)
    print(f"\n{count} images, the fastest of {TURNS} turns\n")
    least = {name: (least_cpu(starts[name]), least_cpu(wholes[name])) for name in commands}
    rates = {name: (count - 1) / (whole - start) for name, (start, whole) in least.items()}
    own = rates["cl embed"]
    heads = ["program", "images per CPU second", "relative to `cl embed`", "CPU s to start"]
    rows = (
        [name, f"{rate:.1f}", f"{rate / own:.2f}", f"{least[name][0]:.1f}"] for name, rate in rates.items()
    )
    table(heads, rows)


def least_cpu(runs: list[Run]) -> float:
    return min(done.cpu for done in runs)


def checked(done: Run) -> Run:
    if done.code:
        raise SystemExit(f"exit code {done.code}: {done.said}")
    return done


def duplicates(programs: Programs, folder: Path) -> None:
    """From images to copies: seconds, precision and recall."""
    work, file = programs.work, programs.encoder.split("=")[1]
    features = work / "features.parquet"
    embed = [sys.executable, "-m", "cl", "embed", str(folder), "--encoder", file, "--to", str(features)]
    find = [sys.executable, "-m", "cl", "duplicates", str(features), "--encoder", file]
    commands = {
        "`cl embed`, `cl duplicates`": [embed, [*find, "--to", str(work / "0.csv")]],
        "imagededup CNN": [programs.case(programs.imagededup, "imagededup_cnn", folder, work / "1.json")],
        "imagededup PHash": [programs.case(programs.imagededup, "imagededup_phash", folder, work / "2.json")],
        "FiftyOne Brain": [programs.case(programs.fiftyone, "fiftyone_brain", folder, work / "3.json")],
    }
    done: dict[str, list[Run]] = {name: [] for name in commands}
    for turn in range(TURNS):
        for name in list(commands)[:: 1 - 2 * (turn % 2)]:
            runs = [run(command) for command in commands[name]]
            clock, cpu, code, said = zip(*runs, strict=True)
            done[name].append(Run(sum(clock), sum(cpu), max(code), said[-1]))
            print(name, turn, done[name][-1], file=sys.stderr, flush=True)
    pairs = {"`cl embed`, `cl duplicates`": pairs_of_groups(work / "0.csv")}
    for number, name in enumerate(list(commands)[1:], 1):
        if not done[name][-1].code:
            pairs[name] = pairs_of(work / f"{number}.json")
    seconds = {name: f"{least_cpu(runs):.0f}" for name, runs in done.items()}
    pairs[f"the cosine alone, at least {LEAST}"] = pairs_by_cosine(features)
    copies = {(name, f"{name[:5]}-copy.png"): int(name[:5]) % len(KINDS) for name in originals_in(folder)}
    print()
    heads = ["", "CPU s", "pairs found", "precision", "recall", *KINDS]
    table(heads, ([name, seconds.get(name, ""), *shares(found, copies)] for name, found in pairs.items()))
    for name in commands:
        if name not in pairs:
            print(f"{name}: exit code {done[name][-1].code}, {done[name][-1].said}")


def originals_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "-copy" not in path.name]


def shares(found: Pairs, copies: dict[tuple[str, str], int]) -> list[str]:
    """Number of pairs; precision, recall, and recall by kind in percent."""
    truth = {ordered(*pair): kind for pair, kind in copies.items()}
    right = found & set(truth)
    by_kind = [
        np.mean([pair in found for pair, own in truth.items() if own == kind]) for kind in range(len(KINDS))
    ]
    return [
        f"{len(found):,}",
        *(
            f"{100 * share:.1f}"
            for share in (len(right) / max(1, len(found)), len(right) / len(truth), *by_kind)
        ),
    ]


def ordered(first: str, second: str) -> tuple[str, str]:
    return min(first, second), max(first, second)


def pairs_of_groups(file: Path) -> Pairs:
    """All pairs of images in one group of `cl duplicates`."""
    groups: dict[str, list[str]] = {}
    with file.open() as lines:
        for row in csv.DictReader(lines):
            groups.setdefault(row["group"], []).append(row["name"])
    return {ordered(*pair) for names in groups.values() for pair in combinations(names, 2)}


def pairs_of(file: Path) -> Pairs:
    found = json.loads(file.read_text())
    return {ordered(name, other) for name, others in found.items() for other in others}


def pairs_by_cosine(file: Path) -> Pairs:
    """The pairs with a cosine of at least LEAST, in a file of `cl embed`."""
    found = feature_files.read(file)
    unit = found.features / np.linalg.norm(found.features, axis=1, keepdims=True)
    near = np.argwhere(np.triu(unit @ unit.T, 1) >= LEAST)
    return {ordered(found.names[i], found.names[j]) for i, j in near}


def unreadable(programs: Programs, network: str, originals: list[Path]) -> None:
    """An image cut in half, and a text with the name of an image, beside readable ones."""
    half = originals[0].read_bytes()[: originals[0].stat().st_size // 2]
    rows = []
    for what, content in (("cut in half", half), ("a text", b"this is not an image\n")):
        folder = programs.work / what.replace(" ", "-")
        folder.mkdir()
        (folder / "broken.jpg").write_bytes(content)
        for path in originals[:FEW]:
            (folder / f"{path.parent.name}-{path.name}").write_bytes(path.read_bytes())
        for name, command in programs.embed(network, 224).items():
            to = programs.work / f"{folder.name}-{name}".replace(" ", "-")
            done = run(command(folder, to))
            names = written(to)
            rows.append(
                [
                    name,
                    what,
                    str(done.code),
                    str(len(names)),
                    "yes" if "broken.jpg" in names else "no",
                    done.said,
                ]
            )
    print()
    table(
        [
            "program",
            f"{FEW} images and one",
            "exit code",
            "rows written",
            "with the broken one",
            "last lines",
        ],
        rows,
    )


def written(to: Path) -> list[str]:
    """The names in a file of features."""
    if (parquet := Path(f"{to}.parquet")).exists():
        return feature_files.read(parquet).names
    torch_file = Path(f"{to}.pt")
    return torch.load(torch_file, weights_only=True)["filenames"] if torch_file.exists() else []


def interruption(programs: Programs, network: str, originals: list[Path]) -> None:
    """Seconds of a whole run, and of the same command after a kill late in the run."""
    folder = programs.work / "many"
    folder.mkdir()
    first = [folder / f"{number:05d}.jpg" for number in range(len(originals))]
    for path, original in zip(first, originals, strict=True):
        path.write_bytes(original.read_bytes())
    for number in range(len(originals), MANY):
        os.link(first[number % len(first)], folder / f"{number:05d}.jpg")
    rows = []
    for name, command in programs.embed(network, SMALL).items():
        to = programs.work / f"killed-{name}".replace(" ", "-")
        whole = checked(run(command(folder, to.with_name(f"whole-{to.name}"))))
        run(command(folder, to), kill_after=0.8 * whole.seconds)
        left = written(to)
        again = run(command(folder, to))
        rows.append(
            [
                name,
                f"{whole.cpu:.0f}",
                str(len(left)),
                f"{again.cpu:.0f}",
                str(again.code),
                str(len(written(to))),
                again.said,
            ]
        )
    print()
    heads = [
        "program",
        "CPU s",
        "rows left by the kill",
        "CPU s of the same command again",
        "exit code",
        "rows",
    ]
    table([*heads, "last lines"], rows)


def table(heads: list[str], rows: Iterable[list[str]]) -> None:
    """Markdown."""
    print("| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", sep="\n")
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
