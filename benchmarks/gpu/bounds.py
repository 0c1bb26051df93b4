"""What a training step of some configurations may ask of a GPU; tests compare it with the code.

`python -m benchmarks.gpu.bounds` prints it beside the recorded values; `--write` records it in bounds.csv,
after a change that is meant to alter it, or a new PyTorch.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.gpu.roofline.operations import GPUS
from benchmarks.gpu.roofline.trace import trace
from benchmarks.parameters import parameters

FILE = Path(__file__).with_suffix(".csv")
R50 = ("backbone=resnet50", "views=mocov2", "loss=infonce", "bn_group=global", "precision=bf16")
MOCO_V3 = (*R50, "method=moco_v3_imagenet", "optim.batch_size=512")
SWAV = (*R50, "loss=dcl", "views=swav_multicrop", "method=swav_imagenet")
MOCO_V3_VIT = (*MOCO_V3, "views=mocov3", "optim=adamw", "method=moco_v3_vit_imagenet")
CHECKPOINTING = ("backbone=vit_base", "backbone.checkpointing=true")
MOCO_V2 = (*R50, "bn_group=32", "method=moco_v2_imagenet")
DINO = (*R50, "loss=dcl", "method=dino_imagenet", "views=swav_multicrop", "optim.batch_size=64")
DINO_VIT = (*R50, "loss=dcl", "method=dino_vit_imagenet", "views=dino_multicrop", "optim=adamw")
NPID = (*R50, "loss=nce", "method=npid_imagenet", "dataset=imagenet")


class Case(NamedTuple):
    """A configuration; `gpus` share its batch."""

    overrides: tuple[str, ...]
    gpus: int = 1


CASES = {
    "SimCLR R50 256": Case((*R50, "method=simclr_imagenet", "optim.batch_size=256")),
    "MoCo v2 R50 256": Case((*MOCO_V2, "optim.batch_size=256")),
    "MoCo v3 R50 512": Case(MOCO_V3),
    "MoCo v3 ViT-S 512": Case((*MOCO_V3_VIT, "backbone=vit_small")),
    "MoCo v3 ViT-B 512, checkpointing": Case((*MOCO_V3_VIT, *CHECKPOINTING)),
    "CIFAR R18 256": Case(("recipe=dcl/table3_cifar10", "precision=bf16")),
    "SwAV R50 64": Case((*SWAV, "optim.batch_size=64")),
    "DINO R50 64": Case(DINO),
    "NPID R50 256": Case((*NPID, "optim.batch_size=256")),
    "SimCLR R50 8 x 64": Case((*R50, "method=simclr_imagenet", "optim.batch_size=512"), 8),
    "MoCo v2 R50 8 x 64": Case((*MOCO_V2, "optim.batch_size=512"), 8),
    "MoCo v3 R50 8 x 64": Case(MOCO_V3, 8),
    "SwAV R50 8 x 64": Case((*SWAV, "optim.batch_size=512"), 8),
    "DINO ViT-S 8 x 64": Case((*DINO_VIT, "backbone=vit_small", "optim.batch_size=512"), 8),
    "NPID R50 8 x 64": Case((*NPID, "optim.batch_size=512"), 8),
}


def measured(case: Case) -> dict[str, float]:
    """What one of the GPUs does in a step; `floor_ms` is on an H100."""
    gpu = trace(parameters(*case.overrides), case.gpus)
    return {
        "operations": len(gpu.operations),
        "gigabytes": round(sum(each.bytes for each in gpu.operations) / 1e9, 2),
        "teraflops": round(sum(each.flops for each in gpu.operations) / 1e12, 3),
        "floor_ms": round(1000 * gpu.floor(GPUS["h100"]), 2),
        "peak_gib": round(gpu.peak / 2**30, 2),
        "exchanges": gpu.collectives().total(),
    }


def recorded() -> dict[str, dict[str, float]]:
    """The rows of the file, by name of case."""
    with FILE.open() as file:
        return {
            row.pop("case"): {key: float(value) for key, value in row.items()} for row in csv.DictReader(file)
        }


@click.command()
@click.option("--write", is_flag=True, help=f"Record the values in {FILE.name}.")
def main(write: bool) -> None:
    """Print what a step of each case asks of a GPU, and what was recorded."""
    before = recorded() if FILE.exists() else {}
    found = {}
    for name, case in CASES.items():
        found[name] = measured(case)
        for key, value in found[name].items():
            click.echo(f"{name:20} {key:12} {value:10g}   recorded {before.get(name, {}).get(key, '-')}")
    if write:
        with FILE.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["case", *next(iter(found.values()))])
            rows.writerows([name, *values.values()] for name, values in found.items())


if __name__ == "__main__":
    main()
