"""evaluate: evaluations of the pretrained encoder, or of a foreign one."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from cl.config import Params
from cl.data.transform import Transform
from cl.encoders import foreign
from cl.evaluations import EvaluatedEncoder
from cl.networks import backbones
from cl.runtime.tensor_files import below, load_tensors
from pipeline.support import command, locations, provenance, runs
from pipeline.support.evaluation import evaluate


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--backbone",
    "file",
    help="Another encoder: a file of weights, torchvision:resnet50 or timm:<name>; see docs/evaluation.md.",
)
@click.option(
    "--prefix", help="Which encoder to use if the file contains several, for example module.encoder_q."
)
@command.entry_point
@command.on_all_devices
def main(names: tuple[str, ...], file: str | None, prefix: str | None) -> None:
    """Run the evaluations NAME of params.yaml, or all, on models/backbone.safetensors or on --backbone.

    Uses all visible GPUs, or CL_PROCESSES processes. Results of another encoder are written to others/.
    """
    params = command.params()
    if prefix is not None and file is None:
        raise ValueError(f"--prefix {prefix} requires --backbone FILE")
    selected = dict.fromkeys(names or params.evaluations)
    for name in selected:
        command.choose(name, params.evaluations, "evaluations")
        provenance.require_inputs("evaluate", name, models=file is None)
    notes: dict[str, Any] = {}
    fitted, train, _ = locations.data(params)
    if file is None:
        encoder = load(fitted)
    else:
        encoder, notes = load_foreign(file, prefix, locations.transform(fitted.dataset, train))
    for name in selected:
        with (
            runs.begin("evaluate", name, encoder=notes.get("sha256", "")) as run,
            command.results("evaluate", name, root=notes.get("folder")) as results,
        ):
            results.notes |= {**notes, **run.notes}
            results.notes["reduced"] = evaluate(name, encoder, params, results, run.checkpoints)


def load(params: Params) -> EvaluatedEncoder:
    """The pretrained backbone with its projector, unless the run handed over the backbone it started from."""
    backbone = backbones.load(params.backbone, locations.BACKBONE)
    if load_tensors(locations.BACKBONE)[1]["epochs"] == "0":  # the projector was trained on other features
        return EvaluatedEncoder(backbone)
    tensors, _ = load_tensors(locations.METHOD)
    projector = params.method.build_projector(backbone.fc_features)
    projector.load_state_dict(below(tensors, f"{params.method.evaluated[1]}."))
    return EvaluatedEncoder(backbone, heads={"embedding": projector})


def load_foreign(
    file: str, prefix: str | None, transform: Transform
) -> tuple[EvaluatedEncoder, dict[str, Any]]:
    """A foreign backbone without heads, and its notes, which include the folder of its results.

    transform: of the evaluated images; a line is printed if the file records another mean or std.
    """
    encoder = foreign.load(file, prefix)
    name = f"{file}, a {encoder.config.title},"
    backbones.check_size(name, encoder.network, transform.crop, "dataset.crop", transform.channels)
    deviation = f", trained {encoder.deviation}" if encoder.deviation else ""
    say = command.progress("backbone").say
    say(f"{file}: {encoder.config.title}, {encoder.origin}{deviation}")
    recorded = encoder.normalisation
    own = encoder.metadata.get("transform")
    if transform.bands and (own is None or Transform.model_validate_json(own).bands != transform.bands):
        say(f"{file} was trained with other statistics of bands; `cl evaluate` uses its own")
    normalisation = transform.mean, transform.std
    if recorded is not None and not transform.bands and not np.allclose(recorded, normalisation, atol=1e-3):
        mean, std = (str(values.tolist()).replace(" ", "") for values in recorded)
        say(
            f"{file} was trained with another normalisation than dataset.mean and dataset.std; "
            f"to use its own, compose with 'dataset.mean={mean}' 'dataset.std={std}'"
        )
    sha256 = encoder.sha256
    notes = {
        "backbone": file,
        "sha256": sha256,
        "origin": encoder.origin,
        "config": encoder.config.model_dump(),
        "folder": f"others/{Path(file.replace(':', '-')).stem}-{sha256[:8]}",
    }
    return EvaluatedEncoder(encoder.network), notes


if __name__ == "__main__":
    main()
