"""The embedded run over five seeds: everything that `make repro` measures, as means and standard deviations.

`python -W ignore -m benchmarks.photos [SEED ...]` runs the stages of each seed in a temporary copy of the
project, and the detection of the untrained encoder as well. A finished seed becomes rows of
docs/results/photos.csv, and is not run again. Needs data/shards and data/scenes of the default experiment.

`python -m benchmarks.photos table` prints the table of docs/results/photos.md.
"""

import json
import sys
from pathlib import Path

from benchmarks import rows
from benchmarks.methods import commit
from benchmarks.workplace import Workplace, copy_of_project
from cl.config import load
from pipeline.composition.compose import write

FILE = Path("docs/results/photos.csv")
COLUMNS = ["seed", "metric", "value", "seconds", "commit"]
SEEDS = range(5)
SETTINGS = ["analysis=[]", "baselines.random.transfers=all"]
MEASURES = {
    "kNN, k = 20": "knn_top1",
    "linear": "linear_top1",
    "1 % of the labels (20 images)": "semi_1_top1",
    "10 % of the labels (200 images)": "semi_10_top1",
    "Faster R-CNN C4, VOC AP50": "voc_c4_ap50",
    "Mask R-CNN C4, COCO box AP50": "coco_c4_box_ap50",
    "Mask R-CNN C4, COCO mask AP50": "coco_c4_mask_ap50",
}
ENCODERS = {
    "pretrained (SimCLR + DCL)": "",
    "untrained encoder": "random_",
    "supervised encoder": "supervised_",
}


def main() -> None:
    if sys.argv[1:] == ["table"]:
        print(table(rows.read(FILE, COLUMNS)))
        return
    for seed in map(int, sys.argv[1:] or SEEDS):
        if not any(int(row["seed"]) == seed for row in rows.read(FILE, COLUMNS)):
            add(seed)


def add(seed: int) -> None:
    """Run the stages with a seed, and add their metrics."""
    code = commit()
    with copy_of_project() as place:
        write(place.folder / "params.yaml", [f"seed={seed}", *SETTINGS])
        seconds = sum(place.run(*stage).seconds for stage in stages(place))
        found = metrics(place.folder / "results")
    rows.append(
        FILE, COLUMNS, [[seed, name, f"{value:.2f}", f"{seconds:.0f}", code] for name, value in found]
    )
    print(seed, f"{seconds:.0f} s", flush=True)


def stages(place: Workplace) -> list[tuple[str, ...]]:
    """The stages of dvc.yaml that train or measure, in order, each with its argument."""
    params = load(place.folder / "params.yaml")
    return [
        ("weights",),
        ("pretrain",),
        *(("evaluate", name) for name in params.evaluations),
        *(("transfer", name) for name in params.transfers),
        *(("baseline", name) for name in params.baselines),
    ]


def metrics(results: Path) -> list[tuple[str, float]]:
    """Every metric of evaluations, transfers and baselines."""
    files = [
        path for name in ("evaluate", "transfer", "baseline") for path in (results / name).glob("*.json")
    ]
    read = [json.loads(path.read_text()) for path in sorted(files) if "provenance" not in path.name]
    return [item for found in read for item in found.items() if isinstance(item[1], float)]


def table(found: list[dict[str, str]]) -> str:
    """Markdown: a row for each measure, and a column for each encoder."""
    values: dict[str, list[float]] = {}
    for row in found:
        values.setdefault(row["metric"], []).append(float(row["value"]))
    lines = [" | ".join(["|", *ENCODERS, "from scratch |"]), "|---" * (len(ENCODERS) + 2) + "|"]
    for title, metric in MEASURES.items():
        names = [prefix + metric for prefix in ENCODERS.values()]
        names.append(f"random_{metric.removesuffix('_top1')}_scratch_top1")
        cells = [rows.mean_and_deviation(values[name]) if name in values else "" for name in names]
        lines.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
