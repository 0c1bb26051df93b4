"""What each backbone costs in training: parameters, memory, and images per second beside ResNet-50's.

`python -W ignore -m benchmarks.encoders` takes steps of SimCLR on two views per image, each case in a process
of its own, so that peak memory is measured separately. The cases take turns; a rate is the best of its turns.
On a GPU, memory is that of the device.

`python -W ignore -m benchmarks.encoders learning` pretrains two modern backbones on the embedded data over
three seeds, and compares their kNN top-1 with that of the same encoders before training. Each finished run is
a row of docs/results/encoders.csv, and is not run again. Needs data/shards and data/scenes of the
default experiment.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks import rows
from benchmarks.memory import peak
from benchmarks.methods import KNN, trained, untrained
from benchmarks.parameters import parameters
from benchmarks.step import Ours
from benchmarks.workplace import copy_of_project
from pipeline.support.composition import write

ROUNDS, WARM, STEPS = 2, 1, 2
IMAGES = {"cpu": {224: 4, 32: 64}, "cuda": {224: 128, 32: 1024}}  # per step, by side in pixels
TIMM = "backbone=timm"
CHECKPOINTING = "backbone.checkpointing=true"
CASES: dict[int, dict[str, list[str]]] = {
    224: {
        **{
            name: [f"backbone={name}"]
            for name in ("resnet50", "resnet18", "resnet34", "resnet101", "resnet152")
        },
        **{name: [f"backbone={name}"] for name in ("vit_tiny", "vit_small", "vit_base")},
        "vit_base, checkpointing": ["backbone=vit_base", CHECKPOINTING],
        "timm convnext_tiny": [TIMM, "backbone.name=convnext_tiny"],
        "timm convnext_tiny, checkpointing": [TIMM, "backbone.name=convnext_tiny", CHECKPOINTING],
        "timm efficientnet_b0": [TIMM, "backbone.name=efficientnet_b0"],
        "timm regnety_016": [TIMM, "backbone.name=regnety_016"],
    },
    32: {
        "resnet18": ["backbone=resnet18"],
        "resnet18_small": ["backbone=resnet18_small"],
        "vit_tiny_patch4": ["backbone=vit_tiny_patch4"],
        "vit_small_patch4": ["backbone=vit_small_patch4"],
        "timm convnext_atto": [TIMM, "backbone.name=convnext_atto"],
    },
}
FILE = Path("docs/results/encoders.csv")
COLUMNS = ["backbone", "seed", "knn_top1", "random_knn_top1"]
ADAMW = ["optim=adamw", "optim.base_lr=1e-3", "optim.warmup_epochs=2"]
LEARNING = {
    "vit_tiny, patches of 8 px": ["backbone=vit_tiny_patch4", "backbone.patch=8", *ADAMW],
    "timm convnext_atto": [TIMM, "backbone.name=convnext_atto", *ADAMW],
}
SEEDS = (0, 1, 2)


def main() -> None:
    if sys.argv[1:] == ["learning"]:
        learn()
        return
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device}")
    for size, cases in CASES.items():
        best: dict[str, dict[str, float]] = {}
        for _ in range(ROUNDS):
            for name in cases:
                found = in_a_process(size, name)
                rate = max(found["rate"], best.get(name, found)["rate"])
                best[name] = found | {"rate": rate}
        first = next(iter(cases))
        print(f"\n{size} px, {IMAGES[device][size]} images per step, two views each\n")
        print(
            f"| backbone | parameters, millions | memory, MiB | images/s | of {first}'s rate |\n{'|---' * 5}|"
        )
        for name, found in best.items():
            ratio = found["rate"] / best[first]["rate"]
            millions, memory = found["parameters"] / 1e6, found["memory"]
            print(
                f"| {name} | {millions:.1f} | {memory:.0f} | {found['rate']:.2f} | {ratio:.2f} |", flush=True
            )


def learn() -> None:
    """Add the rows that are missing."""
    found = {(row["backbone"], int(row["seed"])) for row in rows.read(FILE, COLUMNS)}
    for seed in SEEDS:
        for name, overrides in LEARNING.items():
            if (name, seed) not in found:
                row = [name, seed, *(f"{value:.1f}" for value in learned(overrides, seed))]
                rows.append(FILE, COLUMNS, [row])
                print(*row, flush=True)


def learned(overrides: list[str], seed: int) -> tuple[float, float]:
    """Accuracy (kNN top-1, percent) after and before pretraining."""
    with copy_of_project() as place:
        write(place.folder / "params.yaml", [*overrides, f"seed={seed}", *KNN])
        (before, _), (after, _) = untrained(place), trained(place)
        return after, before


def in_a_process(size: int, name: str) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.encoders", str(size), name]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def measure(size: int, name: str) -> dict[str, float]:
    """Images per second of a step, its peak memory in MiB beyond what was used before, and parameters."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = IMAGES[device][size]
    sizes = [] if size == 32 else ["dataset=imagenet", "views=simclr"]
    params = parameters(
        "method=simclr",
        *sizes,
        *CASES[size][name],
        "optim=adamw",
        f"optim.batch_size={images}",
        "transfer=[]",
    )
    views = [torch.randn(images, 3, size, size, device=device) for _ in range(2)]
    before = used(device)
    side = Ours(params, "bf16" if device == "cuda" else "fp32", views)
    times = []
    for _ in range(WARM + STEPS):
        began = time.perf_counter()
        side.step()
        times.append(time.perf_counter() - began)
    count = sum(parameter.numel() for parameter in side.task.method.backbone.parameters())
    return {"rate": images / min(times[WARM:]), "memory": used(device) - before, "parameters": count}


def used(device: str) -> float:
    """The peak memory so far, in MiB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return peak()


if __name__ == "__main__":
    main()
