"""evaluate: evaluations of the pretrained encoder, or of a foreign one."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.support import command, launch, locations, outputs, provenance, resuming

if TYPE_CHECKING:
    from cl.config import Params
    from cl.evaluations import Encoder
    from cl.training.checkpoints import Checkpoints


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--backbone",
    "file",
    help="Another encoder: a ResNet of torchvision, MoCo, MoCo v3, SimSiam, lightly or solo-learn, a vision "
    "transformer of timm, DINO, DINOv2, MoCo v3 or MAE, weights with timm's config.json beside them, a file "
    "of pipeline.export, torchvision:resnet50 or timm:<name>.",
)
@click.option(
    "--prefix", help="Which encoder to use if the file contains several, for example module.encoder_q."
)
@command.entry_point
@launch.on_all_devices
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
        outputs.require_inputs("evaluate", name, models=file is None)
    notes: dict[str, Any] = {}
    if file is None:
        encoder = load(params)
    else:
        encoder, notes = foreign(file, prefix, params.dataset.crop)
    for name in selected:
        run(name, encoder, params, notes)


def run(name: str, encoder: "Encoder", params: "Params", notes: dict[str, Any]) -> None:
    """Run one evaluation and write its results; `notes` describe a foreign encoder."""
    instead = notes.get("sha256", "")
    with (
        resuming.checkpoints("evaluate", name, instead=instead) as checkpoints,
        command.results("evaluate", name, root=notes.get("folder")) as results,
    ):
        results.notes |= {**notes, "identity": provenance.identity("evaluate", name, instead)}
        metrics, explained = evaluate(name, encoder, params, out=results.folder, checkpoints=checkpoints)
        results.metrics |= metrics
        results.notes["explained"] = explained


def load(params: "Params") -> "Encoder":
    """The pretrained backbone with its projector."""
    from cl.evaluations import Encoder
    from cl.networks import backbones
    from cl.runtime.tensor_files import load_tensors

    backbone = backbones.load(params.backbone, locations.BACKBONE)
    projector = params.method.build_projector(backbone.fc_features)
    tensors, _ = load_tensors(locations.METHOD)
    prefix = f"{params.method.evaluated[1]}."
    projector.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return Encoder(backbone, heads={"embedding": projector})


def foreign(file: str, prefix: str | None, crop: int) -> "tuple[Encoder, dict[str, Any]]":
    """A foreign backbone without heads, and its notes, which include the folder of its results.

    Args:
        crop: side in pixels of the images that it is evaluated on.

    Raises:
        ValueError: `cl.hub.foreign.load` refuses the file, or the encoder does not take such images.
    """
    from cl.evaluations import Encoder
    from cl.hub import foreign
    from cl.networks import backbones

    found = foreign.load(file, prefix)
    backbones.check_size(f"{file}, a {found.config.title},", found.network, crop, "dataset.crop")
    command.progress("backbone").say(f"{file}: {found.config.title}, {found.origin}")
    notes = {
        "backbone": file,
        "sha256": found.sha256,
        "origin": found.origin,
        "config": found.config.model_dump(),
        "folder": f"others/{Path(file.replace(':', '-')).stem}-{found.sha256[:8]}",
    }
    return Encoder(found.network), notes


def evaluate(
    name: str,
    encoder: "Encoder",
    params: "Params",
    *,
    out: "Path",
    checkpoints: "Callable[[str], Checkpoints]",
) -> tuple[dict[str, float], dict[str, Any]]:
    """The metrics of the evaluation NAME, as `<name>_<metric>`, over its seeds, and what they mean."""
    from cl.evaluations import Context, numbers_of
    from cl.runtime.metric_info import explanation
    from cl.runtime.registry import module_of

    config: Any = params.evaluations[name]
    train, val = (locations.reader(split, params.dataset) for split in ("train", "val"))
    config.check(train, val)
    progress = command.progress(name)
    here = command.machine(progress, params.precision, deterministic=params.deterministic)
    for module in encoder.modules:
        here.place(module).eval()
    module = module_of("evaluations", config.kind)

    def measure(seed: int, folder: "Path") -> dict[str, float]:
        context = Context(
            encoder=encoder,
            train=train,
            val=val,
            transform=locations.transform(params.dataset, train.manifest.levels),
            seed=seed,
            machine=here,
            progress=progress,
            out=folder,
            checkpoints=lambda part: checkpoints(f"{part}-{seed}"),
        )
        return module.evaluate(config, context)

    metrics = command.repeated(measure, getattr(config, "seeds", None), params.seed, out)
    progress.say(", ".join(f"{key} {value:.4g}" for key, value in metrics.items()))
    explained = explanation(module.__doc__, numbers_of(config, metrics, train, val))
    return {f"{name}_{key}": value for key, value in metrics.items()}, explained


if __name__ == "__main__":
    main()
