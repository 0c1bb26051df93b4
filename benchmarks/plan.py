"""What `pipeline.plan` says of pretraining beside what a real run takes: docs/results/plan.md.

`python -W ignore -m benchmarks.plan [NUMBER ...]` takes the configurations with these numbers, or all, in a
temporary copy of the project: `pipeline.plan`, and at once a real `pipeline.pretrain`. It adds each to
docs/results/plan.csv, and writes the page from the newest row of each. Needs data/shards of the default
experiment, and a machine that does nothing else.
"""

import csv
import re
import sys
from pathlib import Path

from rich.filesize import decimal

from benchmarks import rows
from benchmarks.methods import commit
from benchmarks.workplace import Workplace, copy_of_project
from cl.config import load
from pipeline.composition.compose import write

FILE, PAGE = Path("docs/results/plan.csv"), Path("docs/results/plan.md")
COLUMNS = ["number", "plan_seconds", "real_seconds", "plan_bytes", "real_bytes", "commit"]
REAL, LEAST = 15.0, 5  # seconds that a real run trains, and its steps beside the first epoch, at least
WITHIN = {"seconds": 0.2, "bytes": 0.1}
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3}
SETTINGS = ["evaluation=[]", "transfer=[]", "analysis=[]", "baseline=[]", "optim.warmup_epochs=0"]
CASES = [
    "method=simclr optim.batch_size=64",
    "method=simclr optim.batch_size=512",
    "method=simclr optim.batch_size=64 views.random.size=48",
    "method=simclr optim.batch_size=128 views=small_multicrop",
    "method=simclr optim.batch_size=256 optim.microbatches=4 bn_group=16",
    "method=simclr optim.batch_size=128 backbone=resnet50",
    "method=moco_v2 optim.batch_size=128",
    "method=moco_v3 optim.batch_size=64 backbone=vit_tiny_patch4",
    "method=byol optim.batch_size=128",
    "method=fast_moco optim.batch_size=64",
]
TEXT = """# What `pipeline.plan` says, and what runs take

Does `pipeline.plan` foretell the time and memory of a run? {verdict} A step's real time is the mean after the
first epoch; real memory is the peak of the process and its data workers.

{table}

```sh
python -W ignore -m benchmarks.plan   # writes this page; plan.csv names the commits
```

Those of cf8f3294f9 ran on two quiet cores of an Intel Xeon, in float32, torch 2.11.0, 2026-11-25.
"""


def main() -> None:
    for number in map(int, sys.argv[1:] or range(1, len(CASES) + 1)):
        rows.append(FILE, COLUMNS, [[number, *measure(CASES[number - 1].split()), commit()]])
        newest = {int(row["number"]): row for row in rows.read(FILE, COLUMNS)}
        PAGE.write_text(page([newest[number] for number in sorted(newest)]))


def measure(overrides: list[str]) -> list[str]:
    """Seconds of a step, planned and real, and bytes at the peak, planned and real."""
    with copy_of_project() as place:
        write(place.folder / "params.yaml", [*SETTINGS, *overrides])
        place.run("weights")
        planned = place.run("plan").output
        seconds = float(re.search(r"^step: (\S+) s", planned, re.MULTILINE)[1])  # type: ignore[index]
        size, unit = re.search(r"^memory: (\S+) (\w+)", planned, re.MULTILINE).groups()  # type: ignore[union-attr]
        real_seconds, real_bytes = real(place, overrides, seconds)
    found = seconds, real_seconds, float(size) * UNITS[unit], float(real_bytes)
    print(*overrides, *(f"{value:.4g}" for value in found), flush=True)
    return [f"{value:.4g}" for value in found]


def real(place: Workplace, overrides: list[str], expected: float) -> tuple[float, int]:
    """Seconds of a step after the first epoch, and peak bytes; `expected`: seconds of a step, as planned."""
    params = load(place.folder / "params.yaml")
    batch, images = params.optim.batch_size, params.dataset.train_patches * 20  # type: ignore[attr-defined]
    steps = max(round(REAL / expected), images // batch + LEAST)
    write(place.folder / "params.yaml", [*SETTINGS, *overrides, f"optim.epochs={steps / (images // batch)}"])
    ran = place.run("pretrain")
    with (place.folder / "results/pretrain/epochs.csv").open() as file:
        epochs = list(csv.DictReader(file))
    ends = [float(row["step"]) for row in epochs]
    seconds = [
        (end - start) * batch / float(row["images_per_second"])
        for start, end, row in zip(ends, ends[1:], epochs[1:], strict=False)
    ]
    return sum(seconds) / (ends[-1] - ends[0]), ran.host_bytes


def page(found: list[dict[str, str]]) -> str:
    """The page of these rows."""
    lines = [
        "| | configuration | s/step, plan | real | ratio | memory, plan | real | ratio |",
        "|---" * 8 + "|",
    ]
    good = dict.fromkeys(WITHIN, 0)
    for row in found:
        cells = [row["number"], CASES[int(row["number"]) - 1]]
        for unit, bound in WITHIN.items():
            planned, ran = (float(row[f"{kind}_{unit}"]) for kind in ("plan", "real"))
            shown = [decimal(round(x)) if unit == "bytes" else f"{x:.3g}" for x in (planned, ran)]
            cells += [*shown, f"{planned / ran:.2f}"]
            good[unit] += abs(planned / ran - 1) <= bound
        lines.append(f"| {' | '.join(cells)} |")
    verdict = (
        f"Of {len(found)} configurations, time is within {WITHIN['seconds']:.0%} of the real one in "
        f"{good['seconds']}, memory within {WITHIN['bytes']:.0%} in {good['bytes']}."
    )
    return TEXT.format(table="\n".join(lines), verdict=verdict)


if __name__ == "__main__":
    main()
