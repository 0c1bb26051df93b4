"""analyze: one analysis of the finished method."""

import csv
import json
from typing import Any

import click

from cl.analyses import AnalysisContext
from cl.config import with_arm
from cl.methods import Setup
from cl.networks import backbones
from cl.runtime.metric_info import BACKBONE, measurements
from cl.runtime.registry import module_of
from cl.runtime.tensor_files import load_state, load_tensors
from pipeline.support import command, locations, provenance, teacher


@click.command()
@click.argument("name")
@command.entry_point
def main(name: str) -> None:
    """Run the analysis NAME of params.yaml on models/method.safetensors and the training log."""
    params = command.params()
    command.choose(name, params.analyses, "analyses")
    provenance.require_inputs("analyze", name)
    progress = command.progress(name)
    here = command.find_machine(params)
    params, train, val = locations.data(params)
    config: Any = params.analyses[name]
    config.check(train, val)
    backbone = backbones.build(params.backbone)
    keys = teacher.keys(params, here, train, progress)
    within = "within" in params.dataset.value_columns
    about = params.temperature, params.patches, 1, params.seed, len(train), within, keys
    setup = Setup(backbone, *about)
    method = module_of("methods", params.method.kind).Method(params.method, setup)
    tensors, metadata = load_tensors(locations.METHOD)
    load_state(method, tensors, locations.METHOD, "run `dvc repro pretrain`")
    if "arm" in metadata:
        params = with_arm(params, json.loads(metadata["arm"]))
    transform = locations.transform(params.dataset, train)
    with (command.RESULTS / "pretrain/epochs.csv").open(newline="") as file:
        epochs = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    with command.results("analyze", name) as results:
        results.notes["precision"] = here.precision  # what `auto` became
        results.notes |= transform.shown
        context = AnalysisContext(
            method=here.place(method).eval(),
            backbone=here.place(backbones.load(params.backbone, locations.BACKBONE)),
            views=list(params.views.values()),
            train=train,
            val=val,
            transform=transform,
            epochs=epochs,
            kept=locations.kept_methods(),
            seed=params.seed,
            machine=here,
            progress=progress,
            out=results.folder,
        )
        module = module_of("analyses", config.kind)
        runs = [{BACKBONE: module.analyze(config, context)}]
        measured = measurements("analyze", name, runs, config.numbers())
        results.add(name, module.__doc__.partition("\n")[0], measured, progress)


if __name__ == "__main__":
    main()
