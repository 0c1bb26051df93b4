"""What `pipeline.plan` predicts for pretraining beside what a real run takes, as a table in Markdown.

`python -m benchmarks.plan [first last]`: the configurations with these numbers, or all. Needs data/shards of
the default experiment. In a temporary copy of the project, the rehearsal that `pipeline.plan` runs alternates
with a real `pipeline.pretrain` of STEPS steps, or of as many as take REAL seconds by the plan, but at least
FEWEST beyond the first epoch. That epoch includes the warm-up, and does not count. The memory of both is
that of all processes and data workers, measured in the same way (`cl.runtime.memory.peak_of_tree`).
"""

import csv
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from cl.config import load
from pipeline.support.composition import write
from pipeline.support.workplace import Ran, Workplace, copy_of_project

REAL, STEPS, FEWEST = 10.0, 100, 5
WITHIN = {"time": 0.2, "memory": 0.1}
ALONE = ["evaluation=[]", "transfer=[]", "analysis=[]", "baseline=[]"]


@dataclass(frozen=True)
class Case:
    """One configuration: pipeline/conf/method, batch, side and kind of views, precision, processes."""

    method: str
    batch: int
    side: int = 32
    views: str = "small"
    precision: str = "fp32"
    processes: int = 1

    @property
    def overrides(self) -> list[str]:
        return [
            f"method={self.method}",
            f"optim.batch_size={self.batch}",
            f"views={self.views}",
            f"views.random.size={self.side}",
            f"precision={self.precision}",
            "optim.warmup_epochs=0",
            *ALONE,
        ]


CASES = [
    Case("simclr", 64),
    Case("simclr", 128),
    Case("simclr", 256),
    Case("simclr", 512),
    Case("simclr", 64, side=64),
    Case("simclr", 128, views="small_multicrop"),
    Case("simclr", 64, precision="bf16"),
    Case("simclr", 128, processes=2),
    Case("simclr", 256, processes=2),
    Case("moco_v2", 64),
    Case("moco_v2", 128),
    Case("moco_v2", 256),
    Case("moco_v2", 64, side=64),
    Case("moco_v2", 64, precision="bf16"),
    Case("moco_v2", 128, processes=2),
    Case("moco_v3", 64),
    Case("moco_v3", 128),
    Case("moco_v3", 128, processes=2),
    Case("byol", 64),
    Case("byol", 128),
    Case("byol", 64, side=64),
    Case("byol", 128, processes=2),
    Case("simsiam", 64),
    Case("simsiam", 128),
    Case("simsiam", 64, processes=2),
    Case("nnclr", 128),
    Case("nnclr", 64, precision="bf16"),
    Case("simo", 128),
]


def main() -> None:
    first, last = (int(argument) for argument in (sys.argv[1:] or [1, len(CASES)]))
    print("| | method | batch | views | precision | processes | s/step, plan | real | ratio |", end="")
    print(" memory, plan | real | ratio |")
    print("|---" * 12 + "|")
    ratios = [measure(number, CASES[number - 1]) for number in range(first, last + 1)]
    for (name, bound), found in zip(WITHIN.items(), zip(*ratios, strict=True), strict=True):
        good = sum(abs(ratio - 1) <= bound for ratio in found)
        print(f"\n{name} within {bound:.0%}: {good} of {len(found)}, {10 * good / len(found):.1f} of ten")


def measure(number: int, case: Case) -> tuple[float, float]:
    """Print a row; plan / real of seconds per step, and of memory."""
    os.environ["CL_PROCESSES"] = str(case.processes)
    with copy_of_project() as place:
        write(place.folder / "params.yaml", case.overrides)
        place.run("weights")
        planned = place.rehearse("pretrain")
        ran, seconds = real(place, case, planned.loop["seconds"])
    predicted = planned.loop["seconds"]
    ratios = predicted / seconds, planned.host_bytes / ran.host_bytes
    views = f"{case.views}, {case.side} px"
    print(
        f"| {number} | {case.method} | {case.batch} | {views} | {case.precision} | {case.processes} | "
        f"{predicted:.3f} | {seconds:.3f} | {ratios[0]:.2f} | {planned.host_bytes / 2**20:.0f} MiB | "
        f"{ran.host_bytes / 2**20:.0f} MiB | {ratios[1]:.2f} |",
        flush=True,
    )
    return ratios


def real(place: Workplace, case: Case, expected: float) -> tuple[Ran, float]:
    """A real run, and its seconds per step after the first epoch."""
    params = load(place.folder / "params.yaml")
    per_epoch = params.dataset.train_patches * 20 // case.batch  # type: ignore[attr-defined]
    steps = max(min(STEPS, round(REAL / expected)), per_epoch + FEWEST)
    write(place.folder / "params.yaml", [*case.overrides, f"optim.epochs={steps / per_epoch}"])
    ran = place.run("pretrain")
    with Path(place.folder / "results/pretrain/epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = [float(row["step"]) for row in rows]
    seconds = [
        (step - before) * case.batch / float(row["images_per_second"])
        for row, before, step in zip(rows[1:], last, last[1:], strict=False)
    ]
    return ran, sum(seconds) / (last[-1] - last[0])


if __name__ == "__main__":
    main()
