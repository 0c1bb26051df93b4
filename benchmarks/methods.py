"""Every method at the size of the embedded data set over three seeds, and the untrained encoder: kNN, k = 20.

`python -W ignore -m benchmarks.methods [METHOD ...]` runs what `dvc exp run -S method=METHOD -S seed=SEED`
pretrains and evaluates, in a temporary copy of the project, and always the untrained encoder. Each finished
run is a row of docs/results/methods.csv; what is there is not run again. Needs data/shards of the default
experiment.

`python -m benchmarks.methods table` prints the means and standard deviations of these rows.
"""

import json
import sys
from pathlib import Path
from statistics import fmean

from benchmarks import rows
from benchmarks.combinations import methods
from benchmarks.workplace import Workplace, copy_of_project
from cl.config import load
from pipeline.composition.compose import write
from pipeline.support import provenance

FILE = Path("docs/results/methods.csv")
COLUMNS = ["method", "loss", "seed", "knn_top1", "seconds", "commit"]
SEEDS = (0, 1, 2)
RANDOM = "random"  # the encoder before training
KNN = ["evaluation=[knn]", "transfer=[]", "analysis=[]", "baseline=[random]"]


def main() -> None:
    if sys.argv[1:] == ["table"]:
        print(table(rows.read(FILE, COLUMNS)))
        return
    for seed in SEEDS:
        for method in [RANDOM, *(sys.argv[1:] or methods())]:
            if not any(
                row["method"] == method and int(row["seed"]) == seed for row in rows.read(FILE, COLUMNS)
            ):
                add(method, seed)


def add(method: str, seed: int) -> None:
    """Run a method with a seed, and add its row."""
    code = commit()
    with copy_of_project() as place:
        chosen = [] if method == RANDOM else [f"method={method}"]
        write(place.folder / "params.yaml", [*chosen, f"seed={seed}", *KNN])
        loss = "" if method == RANDOM else load(place.folder / "params.yaml").loss.kind
        knn, seconds = untrained(place) if method == RANDOM else trained(place)
    row = [method, loss, seed, f"{knn:.1f}", f"{seconds:.0f}", code]
    rows.append(FILE, COLUMNS, [row])
    print(*row, flush=True)


def untrained(place: Workplace) -> tuple[float, float]:
    """The kNN top-1 of the untrained encoder, and no seconds."""
    place.run("baseline", RANDOM)
    return metrics(place, "baseline/random")["random_knn_top1"], 0.0


def trained(place: Workplace) -> tuple[float, float]:
    """The kNN top-1 after pretraining, and the seconds of that stage."""
    place.run("weights")
    seconds = place.run("pretrain").seconds
    place.run("evaluate", "knn")
    return metrics(place, "evaluate/knn")["knn_top1"], seconds


def metrics(place: Workplace, name: str) -> dict[str, float]:
    return json.loads((place.folder / f"results/{name}.json").read_text())


def commit() -> str:
    """The short hash of the code, with + if it has uncommitted changes."""
    found, changed = provenance.code()
    return f"{(found or 'unknown')[:10]}{'+' if changed else ''}"


def table(found: list[dict[str, str]]) -> str:
    """Markdown: a row for each method, best first, and one for the untrained encoder."""
    values: dict[tuple[str, str], list[float]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    for row in found:
        values.setdefault((row["method"], row["loss"]), []).append(float(row["knn_top1"]))
        seconds.setdefault((row["method"], row["loss"]), []).append(float(row["seconds"]))
    start = values.pop((RANDOM, ""))
    lines = ["| method | loss | kNN top-1 | seconds |", "|---" * 4 + "|"]
    for (method, loss), each in sorted(values.items(), key=lambda item: -fmean(item[1])):
        duration = fmean(seconds[method, loss])
        lines.append(f"| {method} | {loss} | {rows.mean_and_deviation(each)} | {duration:,.0f} |")
    lines.append(f"| untrained encoder | | {rows.mean_and_deviation(start)} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
